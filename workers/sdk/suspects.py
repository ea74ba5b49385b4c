"""Suspects: tries the commands whose workers died, so that one that ends its workers costs the others little."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from app import clock
from app.broker.port import Broker
from app.errors import Unavailable

from .context import LOGGER
from .crashes import BESIDE_NOTHING, Crashes
from .desk import Desk
from .job import LAST, Job
from .lane import Lane, Place
from .outage import Outage
from .window import Window

KEY: Final = "alone"


class Work(Protocol):
    """What the suspects ask of whoever works on commands."""

    def begin(self, job: Job) -> asyncio.Task[None]:
        """Works on the job as soon as a place is free."""

    async def emptied(self, job: Job) -> None:
        """Waits until nothing but the job is in hand."""

    def condemn(self, job: Job) -> None:
        """Reports that the command ends its workers."""


class Suspects:
    """One lane a queue, and one place for a command that is to be alone in its process.

    No more of them are held than are at work: what is in hand when a worker dies counts one death more.
    """

    def __init__(
        self, desk: Desk, broker: Broker, window: Window, outage: Outage, crashes: Crashes, places: int, last: int
    ) -> None:
        self._desk, self._broker, self._window = desk, broker, window
        self._outage, self._crashes = outage, crashes
        self._places, self._last = places, min(LAST, last)
        self._lanes: dict[str, Lane] = {}
        self._arrived: asyncio.Queue[Job] = asyncio.Queue()
        self._sole: asyncio.Task[None] | None = None
        self._waits: list[Job] = []
        """The one that waits to be alone."""
        self._work: Work

    def use(self, work: Work) -> None:
        """`work` does them."""
        self._work = work

    def put(self, job: Job) -> None:
        """One more has come; returns at once."""
        self._arrived.put_nowait(job)

    def drain(self) -> list[Job]:
        """All that have come and did not begin."""
        waiting, self._waits = self._waits, []
        return waiting + [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]

    async def round(self) -> None:
        """Decides about those that have come, the fewest deaths first."""
        jobs = [await self._arrived.get()]
        while not self._arrived.empty():
            jobs.append(self._arrived.get_nowait())
        jobs.sort(key=lambda job: job.deaths)
        for job, left in zip(jobs, range(len(jobs) - 1, -1, -1), strict=True):
            if self._desk.alive(job):
                await self._decide(job, left > 0)
            else:
                self._desk.forget(job)

    async def stop(self) -> None:
        """Begins with none any more."""
        if self._sole is not None:
            self._sole.cancel()
            await asyncio.wait([self._sole], timeout=1.0)

    def look(self, busy: Iterable[Job], now: float) -> None:
        """Opens what was closed for want of room."""
        for queue, lane in self._lanes.items():
            lane.watch(now)
            if not lane.full:
                self._window.open(queue)

    async def _decide(self, job: Job, more: bool) -> None:
        if self._desk.stopping.is_set():
            await self._desk.give_back([job])
        elif job.alone and job.redelivered and await self._crashes.began_alone(job):
            await self._crashes.note(job, "it ended a process in which nothing else was at work")
            self._work.condemn(job)
        elif job.alone and job.redelivered:
            await self._aside(job, "it waits to be tried alone: its last worker died before it began", alone=True)
        elif job.alone:
            await self._be_alone(job)
        elif job.deaths >= self._last:
            await self._aside(job, "it waits to be tried alone", alone=True)
        else:
            await self._place(job, more)

    async def _place(self, job: Job, more: bool) -> None:
        queue, lane, id = job.deliveries[0].queue, self._lane(job), job.command.id
        others = not lane.knows_round(id) and (more or await self._has_more(queue))
        place = lane.arrives(id, job.deaths, others, clock.monotonic())
        if place is Place.RUN:
            await self._crashes.note(job, f"it is tried beside at most {lane.width - 1} others like it")
            self._work.begin(job).add_done_callback(lambda task: self._left(queue, id))
            return
        if place is Place.FULL:
            self._window.close(queue)
        await self._aside(job, "it waits behind those with fewer deaths")

    def _lane(self, job: Job) -> Lane:
        return self._lanes.setdefault(job.deliveries[0].queue, Lane(self._places))

    def _left(self, queue: str, id: str) -> None:
        self._lanes[queue].leaves(id, clock.monotonic())
        self.look((), clock.monotonic())

    async def _has_more(self, queue: str) -> bool:
        try:
            count = await self._broker.message_count(queue)
        except Unavailable:
            return False
        return count is not None and count[0] > 0

    async def _aside(self, job: Job, why: str, *, alone: bool = False) -> None:
        await self._crashes.note(job, why)
        LOGGER.warning("workers died with %s, so many: %d; %s", job.command.type, job.deaths, why, extra=job.told)
        await self._desk.set_aside([job], alone=alone)

    async def _be_alone(self, job: Job) -> None:
        """Only one waits for that here, for whoever waits here while another is at work would seem to be guilty."""
        if self._sole is not None and not self._sole.done():
            return await self._desk.set_aside([job], alone=True)
        await self._outage.note(KEY, f"{job.command.type} is tried alone, for {job.deaths} workers died with it")
        self._waits.append(job)
        self._sole = asyncio.create_task(self._alone(job), name="a command alone")
        return None

    async def _alone(self, job: Job) -> None:
        try:
            await self._work.emptied(job)
            await self._crashes.note(job, BESIDE_NOTHING)
            self._waits.remove(job)
            await asyncio.shield(self._work.begin(job))
        finally:
            await self._outage.over(KEY)
