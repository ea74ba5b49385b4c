"""Saga actions: what an operator can ask of a running saga, and what the orchestrator answers."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrix.errors import ConflictError
from orchestrix.saga.actions.requests import ActionRequest, ActionResult

__all__ = ["Action", "ActionResult", "VersionMismatch"]


@dataclass(frozen=True, slots=True)
class Action:
    """One verb for one instance. `version` is what the client last read, if given; a dry run changes nothing."""

    saga: str
    id: int
    ask: ActionRequest
    version: int | None = None
    dry_run: bool = False


class VersionMismatch(ConflictError):
    """The saga is no longer at the version that the client names. Nothing was changed."""

    def __init__(self, current: int) -> None:
        super().__init__(f"the saga is now at version {current}: read it again, then decide")
        self.current = current
