"""Cloned sagas: how a live saga in a copy of its database is held, so that it does not continue by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from orchestrix.saga.changes import ChangeCause
from orchestrix.saga.commands import SagaTransition, progressed
from orchestrix.saga.definition import Saga, milliseconds
from orchestrix.saga.state import CLONED, DEADLINE, PAUSED, RETRY, UNSENT, Instance, StateChange
from orchestrix.saga.transition import change

CLONED_REASON: Final = "cloned: this database is a copy; the original continues the work"


def blocked_clone(instance: Instance, now: datetime) -> SagaTransition:
    """`instance`, which a timer, an event or the end of a pause would move, held as by a pause, with the blocker
    `cloned`.

    What was sent was sent by the original, under another effect key: here nothing is in flight, so that what follows is
    sent with its whole time, and no answer is waited for. A retry wait starts again in full, and the run's own time is
    what was left at its last change: it is unknown when the copy was made.
    """
    row: StateChange = change(instance, instance.state, ChangeCause(CLONED, CLONED_REASON), now)
    progress = instance.progress
    reason = progress.resume if instance.blocker == PAUSED else instance.wake_reason
    rest = instance.wait_ms if reason == RETRY else 0
    if progress.awaited is not None and reason != RETRY:
        reason = DEADLINE
    elif reason != RETRY:
        reason = UNSENT
    run_ms = progress.run_ms
    if instance.blocker != PAUSED and instance.deadline_at is not None:
        run_ms = milliseconds(max(timedelta(0), instance.deadline_at - instance.updated_at))
    return SagaTransition(
        replace(
            instance,
            version=row.version,
            updated_at=now,
            blocker=CLONED,
            wake_at=None,
            wake_reason=None,
            wait_ms=rest,
            hindered_by=None,
            progress=replace(progress, resume=reason, run_ms=run_ms, until=None),
        ),
        (row,),
        None,
    )


def resumed_clone(saga: Saga, instance: Instance) -> Instance:
    """A held clone as if it had been paused, so that it continues as after a pause.

    Its command is sent with its whole time, because no worker here has it. Where nothing was stored of what it waited
    for, the pending command counts as sent; the run's own time is what was left at its last change, or else all of it.
    """
    progress = instance.progress
    reason = progress.resume
    run_ms = progress.run_ms
    if run_ms is None and instance.deadline_at is not None:
        rest = milliseconds(instance.deadline_at - instance.updated_at)
        run_ms = rest if rest > 0 else _whole(saga)
    instance = instance if reason == RETRY else replace(instance, wait_ms=0)
    return replace(progressed(instance, run_ms=run_ms), blocker=PAUSED)


def _whole(saga: Saga) -> int | None:
    return None if saga.timeout is None else milliseconds(saga.timeout)
