"""Installation: the id of a database, which makes the effect keys of its sagas unlike those of any other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Installation:
    """The id, and the last instances from before there was one. `resetting` is the id that a reset is about to give."""

    id: str
    last_app_id: int
    last_instance_id: int
    resetting: str | None = None

    def of(self, id: int, *, app: bool) -> str:
        """What the effect keys of an instance, of an `app` or of any other saga, begin with; empty for one from before
        there was an id."""
        return self.id if id > (self.last_app_id if app else self.last_instance_id) else ""
