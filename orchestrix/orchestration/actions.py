"""What can be asked of a running saga, and what does the orchestrator answer?"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrix.errors import Conflict
from orchestrix.saga.asks import Acted, Ask

__all__ = ["Acted", "Action", "VersionMismatch"]


@dataclass(frozen=True, slots=True)
class Action:
    """One verb for one instance. `version` is what the client last saw, if it says so; a dry run changes nothing."""

    saga: str
    id: int
    ask: Ask
    version: int | None = None
    dry_run: bool = False


class VersionMismatch(Conflict):
    """The saga is not at the version that the client names any more. Nothing was changed."""

    def __init__(self, current: int) -> None:
        super().__init__(f"the saga is at version {current} now: read it again, then decide")
        self.current = current
