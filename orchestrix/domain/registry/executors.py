"""Executors: the state of a registered executor by its heartbeats, and when the reaper may remove it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from orchestrix.domain.stored_times import age_s

LATE_FACTOR: Final = 1.1
"""A heartbeat is late after so many times the interval: the tenth is for the network and for a busy executor."""
GOODBYE_KEPT_S: Final = 90.0
PLAIN_GOODBYE_KEPT_S: Final = 2.0
"""Seconds for which a goodbye is kept with its instance, and without one: then a new process with the same address
cannot be distinguished from a heartbeat that was overtaken by the goodbye."""


class ExecutorState(StrEnum):
    """The state that is shown. Only REMOVED is stored, as the row of who was removed; the others are computed.

    The names of the three steps of grace are their seconds with the default times; with others they keep their order.
    """

    REGISTERING = "REGISTERING"
    """It sent its first heartbeat, and the second is not late yet."""
    HEALTHY = "HEALTHY"
    """No heartbeat is late."""
    GRACE_30 = "GRACE_30"
    """One heartbeat is late."""
    GRACE_60 = "GRACE_60"
    """Two or more are missing, but it is not dead yet."""
    GRACE_90 = "GRACE_90"
    """It is dead, and stays until the reaper removes it."""
    DEREGISTERING = "DEREGISTERING"
    """It said that it leaves: it gets no new job."""
    REMOVED = "REMOVED"


def state_of(
    *, first_seen: datetime, last_seen: datetime, leaving: bool, now: datetime, beat_seconds: float, dead_seconds: float
) -> tuple[ExecutorState, datetime]:
    """The state of a registered executor, and since when it is in it.

    All times by one clock. A step of grace begins at its limit, `GRACE_60` at two intervals, `GRACE_90` at
    `dead_seconds`; where that is two intervals or less, `GRACE_60` or both others are left out. When it recovered is
    not stored: HEALTHY counts from its first heartbeat, DEREGISTERING from its last. A heartbeat in the future was
    written before the clock was set back, and does not count.
    """
    if leaving:
        return ExecutorState.DEREGISTERING, last_seen
    age, late = age_s(last_seen, now), LATE_FACTOR * beat_seconds
    if age <= min(late, dead_seconds):
        once = last_seen == first_seen
        return ExecutorState.REGISTERING if once else ExecutorState.HEALTHY, first_seen
    state, limit = ExecutorState.GRACE_30, late
    if age >= dead_seconds:
        state, limit = ExecutorState.GRACE_90, dead_seconds
    elif age >= 2 * beat_seconds:
        state, limit = ExecutorState.GRACE_60, 2 * beat_seconds
    return state, min(last_seen + timedelta(seconds=limit), now)


def may_remove(
    *,
    now: datetime,
    listening_since: datetime,
    last_heard_any: datetime | None,
    beat_seconds: float,
    dead_seconds: float,
) -> datetime | None:
    """The time before which a last heartbeat is too old, so that the reaper removes the executor; None if it may remove
    none.

    None is removed before a node has listened for `dead_seconds`, since `listening_since`: the end of an outage of the
    database or the beginning of the leader's term. And where the last heartbeat of all executors, `last_heard_any`, is
    late, it is rather the nodes that do not receive (a restart of all of them must not empty the registry): none is
    removed until there is one again, or for twice `dead_seconds` of listening there was none.
    """
    if age_s(listening_since, now) < dead_seconds:
        return None
    silent = age_s(max(last_heard_any or listening_since, listening_since), now)
    if LATE_FACTOR * beat_seconds < silent < 2 * dead_seconds:
        return None
    return now - timedelta(seconds=dead_seconds)


@dataclass(frozen=True, slots=True)
class Goodbye:
    """That an executor deregistered, and which process it was, where it said so."""

    at: datetime
    instance: str | None = None

    @property
    def kept_s(self) -> float:
        """Seconds for which it is kept."""
        return PLAIN_GOODBYE_KEPT_S if self.instance is None else GOODBYE_KEPT_S


def beats_after_goodbye(goodbye: Goodbye | None, *, instance: str | None, now: datetime) -> bool:
    """Whether a heartbeat of `instance` brings the executor back, or registers one that never said goodbye.

    One of the process that said goodbye was overtaken on its way while the goodbye is kept; another process has taken
    over the address.
    """
    return goodbye is None or instance != goodbye.instance or age_s(goodbye.at, now) >= goodbye.kept_s
