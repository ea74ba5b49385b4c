"""What becomes of a saga whose row is a copy of another installation's?"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from .definition import Saga, milliseconds
from .orders import Moved, progressed
from .state import CLONED, DEADLINE, JOB, PAUSED, RETRY, Instance
from .transition import change, move


def parked(saga: Saga, instance: Instance, now: datetime, taken: datetime | None = None) -> Moved | None:
    """`instance`, live, waiting for a person who says whether the copy is to go on; None where it waits for one anyhow.

    `taken` is when the copy was made, if that is known: the run's own time stands still from then on.
    """
    if not instance.live or instance.blocker is not None:
        return None
    row = change(instance, instance.state, f"{CLONED}: this is a copy of another installation", now)
    since = taken or instance.updated_at
    rest = None if instance.deadline_at is None else max(0, milliseconds(instance.deadline_at - since))
    wait = timedelta(0) if instance.wake_at is None else max(timedelta(0), instance.wake_at - since)
    reason = instance.wake_reason if instance.wake_reason in (RETRY, JOB) else DEADLINE
    held = progressed(move(saga, instance, instance.state, row), resume=reason, run_ms=rest)
    wait_ms = milliseconds(wait) if reason == RETRY else 0
    return Moved(replace(held, blocker=CLONED, wake_at=None, wake_reason=None, wait_ms=wait_ms), (row,), None)


def woken(saga: Saga, instance: Instance) -> Instance:
    """A parked instance as if it had been paused, so that it goes on as after a pause.

    Its command is sent with all its time, for nobody here has it. Where nothing was kept of what it waited for, a
    command that is out counts as sent; and of its run's own time what was left at its last change, or else all of it.
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
