"""Operator actions: what people did that a saga waits for, or that ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.sagas import history
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.commands import NEVER
from orchestrix.saga.definition import FAILED
from orchestrix.saga.state import PAUSED, Instance

_ENDS: Final = (SagaAction.CANCEL.value, SagaAction.TERMINATE.value)
ANONYMOUS: Final = "anonymous"
BY_HAND: Final = "by hand"
RETRY_ADVICE: Final = "Nothing to do; if that was a mistake, `retry` runs it again from the beginning."


@dataclass(frozen=True, slots=True)
class OperatorEnding:
    """What a person did to end it, whether undos were skipped after that, and whether it had failed before."""

    action: AuditRow
    skipped: bool = False
    had_failed: bool = False

    def describe(self, at: str, not_undone: Sequence[str], failure: str) -> str:
        """A sentence; `at` is the time of the action in words, `failure` what it had failed by."""
        who = done_by(self.action, self._verb, at)
        if self.action.verb == SagaAction.CANCEL.value:
            return f"{who}: everything is undone{' except the skipped steps' if self.skipped else ''}."
        left = f"not undone: {', '.join(not_undone)}" if not_undone else "nothing to undo"
        return f"{who}: {left}.{f' It had failed before that: {failure}.' if self.had_failed else ''}"

    @property
    def _verb(self) -> str:
        return "Cancelled" if self.action.verb == SagaAction.CANCEL.value else "Terminated"


def done_by(action: AuditRow, what: str, at: str) -> str:
    """`Paused by ada at … (the address is wrong)`. Without tokens the API knows no names: what the shell gives as the
    reason, `by hand (root)`, then says alone who it was.
    """
    if action.actor == ANONYMOUS and action.reason.startswith(BY_HAND):
        return f"{what} {action.reason} at {at}"
    return f"{what} by {action.actor} at {at} ({action.reason})"


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
    done = await audit.listing(connection, instance.saga, instance.id)
    last = max((number for number, row in enumerate(done) if row.verb in _ENDS), default=None)
    if last is None:
        return None
    action, later = done[last], {row.verb for row in done[last + 1 :]}
    pair, version = saga_tables_of(instance.saga), action.to_version or 0
    began = await history.run_began(connection, pair, instance.id)
    if version < began:  # a retry has begun it again since; one of an undo changes nothing
        return None
    failed = await history.had_failed(connection, pair, instance.id, began, version)
    return OperatorEnding(action, SagaAction.SKIP.value in later, failed)
