"""Operator actions: what people did that a saga waits for, or that ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Connection
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.commands import NEVER
from orchestrix.saga.definition import FAILED
from orchestrix.saga.state import PAUSED, Instance, InstanceProgress

_ENDS: Final = (SagaAction.CANCEL.value, SagaAction.TERMINATE.value)
RETRY_ADVICE: Final = "Nothing to do; if that was a mistake, `retry` runs it again from the beginning."


@dataclass(frozen=True, slots=True)
class OperatorEnding:
    """What a person did to end it, and whether undos were skipped after that."""

    deed: AuditRow
    skipped: bool = False

    def told(self, at: str, progress: InstanceProgress) -> str:
        """A sentence; `at` is the time of the action in words."""
        who = f"{self._verb} by {self.deed.actor} at {at} ({self.deed.reason})"
        if self.deed.verb == SagaAction.CANCEL.value:
            return f"{who}: everything is undone{' except the skipped steps' if self.skipped else ''}."
        left = f"not undone: {', '.join(progress.left)}" if progress.left else "nothing to undo"
        before = progress.error is not None and not progress.error.startswith(f"{self.deed.verb}: ")
        return f"{who}: {left}.{f' It had failed before that: {progress.error}.' if before else ''}"

    @property
    def _verb(self) -> str:
        return "Cancelled" if self.deed.verb == SagaAction.CANCEL.value else "Terminated"


async def wait_of(connection: Connection, instance: Instance) -> AuditRow | None:
    """An operator's last action that it waits for: a pause, or a cancelled deadline. Raises `Unavailable`."""
    if instance.blocker == PAUSED:
        verb = SagaAction.PAUSE
    elif instance.wake_at is not None and instance.wake_at >= NEVER:
        verb = SagaAction.CANCEL_DEADLINE
    else:
        return None
    done = await audit.listing(connection, instance.saga, instance.id)
    return next((row for row in reversed(done) if row.verb == verb.value), None)


async def end_of(connection: Connection, instance: Instance) -> OperatorEnding | None:
    """Who has given it up, where it has failed by that. Raises `Unavailable`."""
    if instance.state != FAILED:
        return None
    return given_up(await audit.listing(connection, instance.saga, instance.id), instance.progress.error)


def given_up(done: Sequence[AuditRow], error: str | None) -> OperatorEnding | None:
    """Who gave up the saga whose last run has failed; None where it failed by itself. `done` has the oldest first.

    A later retry has begun it anew, unless it was one of an undo: then the action is still the reason of the end.
    """
    last = max((number for number, row in enumerate(done) if row.verb in _ENDS), default=None)
    if last is None:
        return None
    deed, later = done[last], {row.verb for row in done[last + 1 :]}
    if SagaAction.RETRY.value in later and error != f"{deed.verb}: {deed.reason}":
        return None
    return OperatorEnding(deed, SagaAction.SKIP.value in later)
