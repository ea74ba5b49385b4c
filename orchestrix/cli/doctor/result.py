"""Check result: one result of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `fix` is what to type or to do, where the detail does not say it already."""

    status: str
    what: str
    detail: str
    fix: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """The finding as `-o json` shows it."""
        return {"status": self.status, "what": self.what, "detail": self.detail, "fix": self.fix}
