"""Scheduler: the leader's duty that makes a job of each due time, exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.domain.jobs import PENDING, JobRow
from orchestrix.domain.leases import Fence
from orchestrix.domain.schedules import (
    QUEUED_WAKE_AT,
    Firing,
    Schedule,
    ScheduledRun,
    UnfinishedRuns,
    after_firing,
    comes_again,
    fire,
    released,
    reset_due_time,
    times_of,
)
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.errors import ConflictError, Invalid, StaleTermError
from orchestrix.jobs.cancellation import cancel_jobs
from orchestrix.jobs.events import StopRequest
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_targets, jobs, schedules
from orchestrix.persistence.jobs.job_targets import MixedVersions
from orchestrix.quantities import counted
from orchestrix.schedules import runs
from orchestrix.schedules.time_zones import zone

log = logging.getLogger("orchestrix.schedules")

SCHEDULES_PER_TRANSACTION: Final = 50
"""Schedules that are fired in one transaction."""
IDLE_POLL_INTERVAL_S: Final = 5.0
"""Seconds between two polls when nothing is due earlier and no change is notified."""
QUEUED_RUNS_POLL_INTERVAL_S: Final = 1.0
"""The same while runs wait for others to end: those may end at any node."""
LOCKED_POLL_INTERVAL_S: Final = 0.1
"""Seconds until the next poll where all rows that are due are locked by others."""
UNREADABLE_RETRY_INTERVAL: Final = timedelta(minutes=1)
"""Delay until a schedule that cannot be read is tried again."""
MIXED_VERSIONS_RETRY_INTERVAL: Final = timedelta(seconds=10)
"""The same for one whose jobs a living node cannot judge."""
REPLACED_REASON: Final = "replaced by the next run of its schedule"


@dataclass(slots=True)
class _Fired:
    """The result of one transaction: how many schedules it moved, and what is to be notified after its commit."""

    schedules: int = 0
    jobs: list[JobRow] = field(default_factory=list)
    stops: list[StopRequest] = field(default_factory=list)


class Scheduler:
    """A duty of the leader: makes a job of each due time, and lets waiting runs begin when their turn has come.

    The job and the schedule's next due time are one transaction, which ends with the check of the term: the next leader
    finds either both or none. Jobs are unique per schedule and due time besides. `wake` is set when a schedule or one
    of its jobs has changed; `notify_leader` notifies that jobs may begin; `stop` notifies workers that an attempt is
    over.
    """

    def __init__(
        self,
        database: Database,
        fence: Fence,
        wake: WakeSignal,
        *,
        notify_leader: Callable[[], None],
        stop: Callable[[Sequence[StopRequest]], None],
    ) -> None:
        self._database = database
        self._fence = fence
        self._wake = wake
        self._notify_leader = notify_leader
        self._stop = stop
        self._seen: datetime | None = None
        self._loop = Loop("schedules", self._round)

    async def start(self) -> None:
        """Begins to poll for schedules that are due."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is due is left to the next leader."""
        await self._loop.stop()

    async def _round(self) -> None:
        await self._follow_clock()
        wait, queued = await self._next_poll()
        try:
            moved = await self.fire() if wait <= 0 else 0
            moved += await self.release_waiting_runs() if queued or moved else 0
        except StaleTermError as refused:
            log.warning("%s", refused)
            moved, wait = 0, IDLE_POLL_INTERVAL_S
        except ConflictError as late:
            log.debug("concurrent update, retrying: %s", late)
            moved = 0
        if not moved:
            await self._wake.wait(
                wait if wait > 0 else clock.uniform(LOCKED_POLL_INTERVAL_S / 2, LOCKED_POLL_INTERVAL_S)
            )

    async def _follow_clock(self) -> None:
        """Moves forward what waits for a time that is no longer the next one: the clock was set back."""
        now, before = self._database.now(), self._seen
        self._seen = now
        if before is not None and now >= before - CLOCK_TOLERANCE:
            return
        after: str | None = ""
        try:
            while after is not None:
                after = await self._database.run(partial(self._rewind, after))
        except StaleTermError as refused:
            log.warning("%s", refused)

    async def _rewind(self, after: str, tx: Transaction) -> str | None:
        """The id of the last schedule of a full batch behind `after`; None at the end."""
        found, now, moved = await schedules.later(tx, after, SCHEDULES_PER_TRANSACTION), tx.now(), 0
        for one in found:
            with suppress(Invalid):  # one that cannot be read here is logged when it is due
                fresh = reset_due_time(one, times_of(one, zone(one.zone), now), now)
                if fresh is not one:
                    await schedules.store(tx, one, fresh)
                    moved += 1
        if moved:
            log.warning("the clock was set back: due times of %s moved earlier", counted(moved, "schedule"))
            await leases.check_fence(tx, self._fence)
        return found[-1].id if len(found) == SCHEDULES_PER_TRANSACTION else None

    async def fire(self) -> int:
        """Makes jobs of what is due; how many schedules were. Raises `StaleTermError` if a newer term has begun."""
        fired = await self._database.run(self._fire)
        if fired.schedules:
            crash.point("schedules.fire.after_commit")
            log.debug("%s due, %s created", counted(fired.schedules, "schedule"), counted(len(fired.jobs), "job"))
            self._notify(fired)
        return fired.schedules

    async def release_waiting_runs(self) -> int:
        """Lets runs begin whose turn has come; how many. Raises `StaleTermError` if a newer term has begun."""
        count = await self._database.run(self._release_waiting_runs)
        if count:
            crash.point("schedules.release.after_commit")
            self._notify_leader()
        return count

    def _notify(self, fired: _Fired) -> None:
        if fired.stops:
            self._stop(fired.stops)
        if fired.jobs:
            self._notify_leader()

    async def _fire(self, tx: Transaction) -> _Fired:
        fired = _Fired()
        found = await schedules.due(tx, SCHEDULES_PER_TRANSACTION)
        if not found:
            return fired
        ready = await self._ready(tx, found)
        busy = await schedules.busy(tx, [one.id for one in ready])
        firings = [(one, firing) for one in ready if (firing := await self._firing(tx, one, busy[one.id])) is not None]
        for one, firing in firings:
            await self._fire_one(tx, one, firing, fired)
        fired.stops = await self._replace(tx, {one.id for one, firing in firings if firing.cancel}, fired.jobs)
        fired.schedules = len(found)
        await leases.check_fence(tx, self._fence)
        crash.point("schedules.fire.before_commit")
        return fired

    @staticmethod
    async def _ready(tx: Transaction, found: Sequence[Schedule]) -> list[Schedule]:
        """Those that can be fired. Where a living node cannot judge the jobs of some, those wait for it, due as they
        are: what that makes late is fired as `misfire` says.
        """
        if all(one.group is None for one in found):
            return list(found)
        try:
            await job_targets.check_versions(tx)
        except MixedVersions as mixed:
            later = tx.now() + MIXED_VERSIONS_RETRY_INTERVAL
            for one in found:
                if one.group is not None:
                    await schedules.store(tx, one, replace(one, trouble=mixed.cause, next_at=later))
            return [one for one in found if one.group is None]
        return list(found)

    @staticmethod
    async def _firing(tx: Transaction, one: Schedule, busy: UnfinishedRuns) -> Firing | None:
        """What is to be done for a schedule that is due; None for one that cannot be read here, which waits."""
        now = tx.now()
        try:
            return fire(one, times_of(one, zone(one.zone), now), now, busy)
        except Invalid as problem:  # of another version, or of a node with other time zones: the next one may know it
            log.error("schedule %s cannot be evaluated: %s", one.name, problem)
            await schedules.store(tx, one, replace(one, trouble=str(problem), next_at=now + UNREADABLE_RETRY_INTERVAL))
            return None

    @staticmethod
    async def _replace(tx: Transaction, cancelling: set[str], new: Sequence[JobRow]) -> list[StopRequest]:
        """Cancels the earlier runs of these schedules where there is a new one: a due time may have had its run."""
        made = {job.id for job in new}
        whose = sorted(cancelling & {job.schedule_id for job in new if job.schedule_id is not None})
        replaced = [id for id in await schedules.unfinished(tx, whose) if id not in made]
        return await cancel_jobs(tx, dict.fromkeys(replaced, REPLACED_REASON)) if replaced else []

    async def _fire_one(self, tx: Transaction, one: Schedule, firing: Firing, fired: _Fired) -> None:
        firing, new = await self._make(tx, one, firing)
        await schedules.store(tx, one, after_firing(one, firing, new, tx.now()))
        fired.jobs += new

    @staticmethod
    async def _make(tx: Transaction, one: Schedule, firing: Firing) -> tuple[Firing, list[JobRow]]:
        """The jobs of the runs, without those that there was one for already."""
        kept = await runs.insert(tx, one, firing.runs)
        if len(kept) < len(firing.runs):
            missing = [run for run in firing.runs if run not in [made for made, _ in kept]]
            kept += await runs.insert(tx, one, await _already_made(tx, one, missing))
        return replace(firing, runs=tuple(run for run, _ in kept)), [job for _, job in kept]

    async def _release_waiting_runs(self, tx: Transaction) -> int:
        waiting = await schedules.freed(tx, SCHEDULES_PER_TRANSACTION)
        if not waiting:
            return 0
        found = await jobs.lock(tx, [one.job_id for one in waiting])
        turn = [job for job in found.values() if job.state == PENDING and job.wake_at == QUEUED_WAKE_AT]
        await jobs.store(tx, [(job.version, released(job, tx.now())) for job in turn])
        await leases.check_fence(tx, self._fence)
        crash.point("schedules.release.before_commit")
        return len(turn)

    async def _next_poll(self) -> tuple[float, bool]:
        """Seconds until the next poll, none if something is due, and whether runs wait for their turn."""
        async with self._database.read() as connection:
            due = await schedules.next_due(connection)
            queued = await schedules.any_queued(connection)
        pause = QUEUED_RUNS_POLL_INTERVAL_S if queued else IDLE_POLL_INTERVAL_S
        return (pause if due is None else min(due, pause)), queued


async def _already_made(tx: Transaction, one: Schedule, missing: Sequence[ScheduledRun]) -> list[ScheduledRun]:
    """Those that come again though there was a job for their due time: the clock was set back since it was made.

    That job may have been made at the same time of the day as now; but then a later one is from the future.
    """
    now = tx.now()
    if not await schedules.made_after(tx, one.id, now + CLOCK_TOLERANCE):
        return []
    times = times_of(one, zone(one.zone), now)
    return [replace(run, due_at=None) for run in missing if comes_again(run, times)]
