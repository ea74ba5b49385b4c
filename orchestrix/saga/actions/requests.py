"""Action requests: what a person can request of a saga, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from orchestrix.saga.changes import ChangeCause
from orchestrix.saga.errors import IllegalTransition
from orchestrix.saga.messages import Command
from orchestrix.saga.state import Instance, StateChange


class SagaAction(Enum):
    """An action. The value is its name in paths, in history and in the audit log."""

    RETRY = "retry"
    SKIP = "skip"
    EDIT = "edit"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    SET_DEADLINE = "set-deadline"
    CANCEL_DEADLINE = "cancel-deadline"


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One request. `reason` is the person's sentence.

    `output` belongs to the skip of a step: what that would have returned. `patch` belongs to edit, and can go with
    retry: an RFC 7396 merge patch of the data. `at` or `extend_by` belongs to set-deadline.
    """

    verb: SagaAction
    actor: str
    reason: str
    output: Mapping[str, Any] | None = None
    patch: Mapping[str, Any] | None = None
    at: datetime | None = None
    extend_by: timedelta | None = None

    def cause(self, step: str | None) -> ChangeCause:
        """Why the saga changes by it, while `step` is in flight."""
        return ChangeCause(self.verb.value, f"{self.verb.value}: {self.reason}", step, actor=self.actor)


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The instance as it is from now on. `history` is empty where the action was in effect already.

    `command` is to be sent; `withdrawn` names the command that must not be published any more; `undo` lists the steps
    that will be undone, in order.
    """

    instance: Instance
    history: tuple[StateChange, ...] = ()
    command: Command | None = None
    withdrawn: str | None = None
    undo: tuple[str, ...] = ()


class ActionNotAllowed(IllegalTransition):
    """The action is not allowed in the saga's state. `allowed` are those that are."""

    def __init__(self, message: str, allowed: Sequence[SagaAction]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)
