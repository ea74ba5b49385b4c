"""Cloned sagas: what becomes of a live saga in a copy of its database, where it must not go on by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from .definition import milliseconds
from .orders import Moved
from .state import CLONED, DEADLINE, PAUSED, RETRY, UNSENT, Change, Instance
from .transition import change

REASON: Final = "cloned: this is a copy of its database, and the original goes on with it"


def parked(instance: Instance, now: datetime) -> Moved:
    """`instance`, which the machine or the end of a pause would move, held as by a pause, but as `cloned`.

    What was sent was sent by the original, under another effect key: here nothing is out, so that what follows is sent
    with its whole time, and no answer is waited for. Only the wait before another try goes on where it was.
    """
    row: Change = change(instance, instance.state, REASON, now)
    progress = instance.progress
    reason = progress.resume if instance.blocker == PAUSED else instance.wake_reason
    rest = timedelta(0)
    if reason == RETRY:
        held = instance.blocker == PAUSED
        rest = timedelta(milliseconds=instance.wait_ms) if held else max(rest, (instance.wake_at or now) - now)
    elif progress.awaited is not None:
        reason = DEADLINE
    else:
        reason = UNSENT
    run_ms = progress.run_ms
    if instance.blocker != PAUSED and instance.deadline_at is not None:
        run_ms = milliseconds(max(timedelta(0), instance.deadline_at - now))
    return Moved(
        replace(
            instance,
            version=row.version,
            updated_at=now,
            blocker=CLONED,
            wake_at=None,
            wake_reason=None,
            wait_ms=milliseconds(rest),
            progress=replace(progress, resume=reason, run_ms=run_ms, until=None),
        ),
        (row,),
        None,
    )
