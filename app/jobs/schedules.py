"""How does a job begin by itself when its time has come, once and under one leader?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from app import clock, crash
from app.domain.jobs import PENDING, Job
from app.domain.leases import Fence
from app.domain.schedules import HELD, Busy, Firing, Schedule, after_firing, fire, released, times_of
from app.errors import Conflict, Deposed, Invalid
from app.jobs import runs
from app.jobs.events import Stop
from app.jobs.zones import zone
from app.lifecycle import Loop, Wake
from app.persistence import jobs, leases, schedules
from app.persistence.engine import Database, Transaction

log = logging.getLogger("orchestrix.schedules")

BATCH: Final = 50
"""Schedules that are fired in one transaction."""
NAP: Final = 5.0
"""Seconds between two looks when nothing is due earlier and nobody says that something has changed."""
TURN: Final = 1.0
"""The same while runs wait for others to end: those may end at any node."""
TAKEN: Final = 0.1
"""Seconds until the next look where all that is due is in somebody else's hands."""
PATIENCE: Final = timedelta(minutes=1)
"""Until a schedule that cannot be read is looked at again."""
REPLACED: Final = "the next run of its schedule is due"


@dataclass(slots=True)
class _Fired:
    """What one transaction came to: how many schedules it moved, and what is to be said after its commit."""

    schedules: int = 0
    jobs: list[Job] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)


class Scheduler:
    """A duty of the leader: makes a job of each due time, and lets waiting runs begin when their turn has come.

    The job and the schedule's next due time are one transaction, which ends with the check of the term: whoever leads
    next finds either both or none. Jobs are unique per schedule and due time besides. `wake` is set when a schedule or
    one of its jobs has changed; `due` tells that jobs may begin; `stop` tells workers that an attempt is over.
    """

    def __init__(
        self,
        database: Database,
        fence: Fence,
        wake: Wake,
        *,
        due: Callable[[], None],
        stop: Callable[[Sequence[Stop]], None],
    ) -> None:
        self._database = database
        self._fence = fence
        self._wake = wake
        self._due = due
        self._stop = stop
        self._loop = Loop("schedules", self._round)

    async def start(self) -> None:
        """Begins to look for schedules that are due."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is due is left to the next leader."""
        await self._loop.stop()

    async def _round(self) -> None:
        wait, held = await self._outlook()
        try:
            moved = await self.fire() if wait <= 0 else 0
            moved += await self.let_go() if held or moved else 0
        except Deposed as refused:
            log.warning("%s", refused)
            moved, wait = 0, NAP
        except Conflict as late:
            log.debug("somebody else was first: %s", late)
            moved = 0
        if not moved:
            await self._wake.wait(wait if wait > 0 else clock.uniform(TAKEN / 2, TAKEN))

    async def fire(self) -> int:
        """Makes jobs of what is due; how many schedules were. Raises `Deposed` if a newer term has begun."""
        fired = await self._database.run(self._fire)
        if fired.schedules:
            crash.point("schedules.fire.after_commit")
            log.debug("schedules were due: %d; their jobs: %d", fired.schedules, len(fired.jobs))
            self._tell(fired)
        return fired.schedules

    async def let_go(self) -> int:
        """Lets runs begin whose turn has come; how many. Raises `Deposed` if a newer term has begun."""
        count = await self._database.run(self._let_go)
        if count:
            crash.point("schedules.release.after_commit")
            self._due()
        return count

    def _tell(self, fired: _Fired) -> None:
        if fired.stops:
            self._stop(fired.stops)
        if fired.jobs:
            self._due()

    async def _fire(self, tx: Transaction) -> _Fired:
        fired = _Fired()
        found = await schedules.due(tx, BATCH)
        if not found:
            return fired
        busy = await schedules.busy(tx, [one.id for one in found])
        firings = [(one, firing) for one in found if (firing := await self._firing(tx, one, busy[one.id])) is not None]
        replaced = await schedules.unfinished(tx, [one.id for one, firing in firings if firing.cancel])
        if replaced:
            fired.stops = await runs.cancel(tx, dict.fromkeys(replaced, REPLACED))
        for one, firing in firings:
            await self._fire_one(tx, one, firing, fired)
        fired.schedules = len(found)
        await leases.check(tx, self._fence)
        crash.point("schedules.fire.before_commit")
        return fired

    @staticmethod
    async def _firing(tx: Transaction, one: Schedule, busy: Busy) -> Firing | None:
        """What is to be done for a schedule that is due; None for one that cannot be read here, which waits."""
        now = tx.now()
        try:
            return fire(one, times_of(one, zone(one.zone)), now, busy)
        except Invalid as trouble:  # of another version, or of a node with other time zones: the next one may know it
            log.error("schedule %s cannot be read: %s", one.name, trouble)
            await schedules.store(tx, one, replace(one, trouble=str(trouble), next_at=now + PATIENCE))
            return None

    async def _fire_one(self, tx: Transaction, one: Schedule, firing: Firing, fired: _Fired) -> None:
        firing, new = await self._make(tx, one, firing)
        await schedules.store(tx, one, after_firing(one, firing, new, tx.now()))
        fired.jobs += new

    @staticmethod
    async def _make(tx: Transaction, one: Schedule, firing: Firing) -> tuple[Firing, list[Job]]:
        """The jobs of the runs, without those that there was one for already."""
        wanted = runs.made(one, firing.runs, tx)
        new = await jobs.insert(tx, wanted)
        kept = [(run, job) for run, job in zip(firing.runs, wanted, strict=True) if job.id in new]
        return replace(firing, runs=tuple(run for run, _ in kept)), [job for _, job in kept]

    async def _let_go(self, tx: Transaction) -> int:
        waiting = await schedules.freed(tx, BATCH)
        if not waiting:
            return 0
        found = await jobs.lock(tx, [one.job_id for one in waiting])
        turn = [job for job in found.values() if job.state == PENDING and job.wake_at == HELD]
        await jobs.store(tx, [(job.version, released(job, tx.now())) for job in turn])
        await leases.check(tx, self._fence)
        crash.point("schedules.release.before_commit")
        return len(turn)

    async def _outlook(self) -> tuple[float, bool]:
        """Seconds until the next look, none if something is due, and whether runs wait for their turn."""
        async with self._database.read() as connection:
            due = await schedules.next_due(connection)
            held = await schedules.any_held(connection)
        nap = TURN if held else NAP
        return (nap if due is None else min(due, nap)), held
