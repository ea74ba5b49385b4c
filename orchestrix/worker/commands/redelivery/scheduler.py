"""Suspects: tries the commands whose workers died, so that one that ends its workers costs the others little."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from orchestrix import clock
from orchestrix.broker.port import Broker
from orchestrix.errors import Unavailable
from orchestrix.persistence.sagas.redelivered_commands import SET_ASIDE_PREFIX
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.delivery import LAST_TRY_DEATHS, CommandDelivery
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.prefetch import PrefetchWindow
from orchestrix.worker.commands.redelivery.crash_notes import TRIED_ALONE, CrashNotes
from orchestrix.worker.commands.redelivery.policy import RedeliveryDecision, RedeliveryPolicy
from orchestrix.worker.context import LOGGER
from orchestrix.worker.error_mapping import ends_task

KEY: Final = "alone"
ALONE_TIMEOUT_S: Final = 30.0
"""Seconds for which a worker takes nothing new so that a command can be alone in it."""
ALONE_COOLDOWN_S: Final = 60.0
"""Seconds after that in which it does not try so again, nor while what it waited for in vain is in hand."""
ALONE_HOLD_S: Final = 2.0
"""Seconds that a command which is to be alone stays here meanwhile, before it goes back to its queue."""


class CommandRunner(Protocol):
    """What the suspects ask of whoever works on commands."""

    @property
    def free(self) -> bool:
        """Whether a place is free."""

    def begin(self, job: CommandDelivery) -> asyncio.Task[None]:
        """Works on the job as soon as a place is free."""

    def beside(self, job: CommandDelivery) -> set[CommandDelivery]:
        """What else is in hand, but for what will not end at all."""

    async def emptied(self, job: CommandDelivery) -> None:
        """Waits until there is nothing beside the job."""

    def condemn(self, job: CommandDelivery) -> None:
        """Reports that the command ends its workers."""


class RedeliveryScheduler:
    """One lane a queue, and one place for a command that is to be alone in its process.

    No more of them are held than are at work: what is in hand when a worker dies counts one death more.
    """

    def __init__(
        self,
        desk: InFlightCommands,
        broker: Broker,
        window: PrefetchWindow,
        outage: Backpressure,
        crashes: CrashNotes,
        places: int,
        last: int,
    ) -> None:
        self._desk, self._broker, self._window = desk, broker, window
        self._outage, self._crashes = outage, crashes
        self._places, self._last = places, min(LAST_TRY_DEATHS, last)
        self._lanes: dict[str, RedeliveryPolicy] = {}
        self._arrived: asyncio.Queue[CommandDelivery] = asyncio.Queue()
        self._undecided: list[CommandDelivery] = []
        self._tried: dict[CommandDelivery, None] = {}
        self._sole: asyncio.Task[None] | None = None
        self._waits: dict[CommandDelivery, None] = {}
        """Those that are to be alone and have not begun."""
        self._held: set[asyncio.Task[None]] = set()
        self._rest_until = 0.0
        self._hindered: set[CommandDelivery] = set()
        """For these a worker has waited in vain."""
        self._work: CommandRunner

    def use(self, work: CommandRunner) -> None:
        """`work` does them."""
        self._work = work

    def put(self, job: CommandDelivery) -> None:
        """One more has come; returns at once."""
        self._arrived.put_nowait(job)

    def drain(self) -> list[CommandDelivery]:
        """All that have come and did not begin."""
        waiting, self._waits, self._undecided = [*self._waits, *self._undecided], {}, []
        return waiting + [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]

    async def round(self) -> None:
        """Decides about those that have come, the fewest deaths first."""
        jobs = self._undecided  # in an attribute: whoever stops this gives them back
        if not jobs:
            jobs.append(await self._arrived.get())
        while not self._arrived.empty():
            jobs.append(self._arrived.get_nowait())
        jobs.sort(key=lambda job: job.deaths)
        while jobs:
            if self._desk.alive(jobs[0]):
                await self._decide_or_put_back(jobs[0], len(jobs) > 1)
            else:
                self._desk.forget(jobs[0])
            del jobs[:1]

    async def stop(self) -> None:
        """Begins with none any more."""
        tasks = [*self._held, *([self._sole] if self._sole is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def look(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """Opens what was closed for want of room."""
        self._follow(now)
        for queue, lane in self._lanes.items():
            if lane.room(self._work.free):
                self._window.open(queue)

    def _follow(self, now: float) -> None:
        """Tells the lanes who is at work."""
        for job in self._tried:
            self._lane(job).works(job.command.id, job.begun)
        for lane in self._lanes.values():
            lane.watch(now)

    async def _decide_or_put_back(self, job: CommandDelivery, more: bool) -> None:
        """It leaves this worker's hands even where the worker itself fails."""
        task = asyncio.current_task()
        try:
            await self._decide(job, more)
        except BaseException as error:
            if ends_task(error, task):
                raise
            self._undecided.remove(job)
            await self._desk.reject([job])
            if isinstance(error, Exception):
                raise
            raise RuntimeError("nobody could decide about a command whose workers died") from error

    async def _decide(self, job: CommandDelivery, more: bool) -> None:
        if self._desk.stopping.is_set():
            await self._desk.give_back([job])
        elif job.alone and job.redelivered and await self._crashes.began_alone(job):
            await self._crashes.note(job, "it ended a process in which nothing else was at work")
            self._work.condemn(job)
        elif job.alone and job.redelivered:
            await self._aside(
                job, f"{SET_ASIDE_PREFIX} to be tried alone: its last worker died before it began", alone=True
            )
        elif job.alone:
            await self._be_alone(job)
        elif job.deaths >= self._last:
            await self._aside(job, f"{SET_ASIDE_PREFIX} to be tried alone", alone=True)
        else:
            await self._place(job, more)

    async def _place(self, job: CommandDelivery, more: bool) -> None:
        queue, lane, id = job.deliveries[0].queue, self._lane(job), job.command.id
        others = not lane.knows_round(id) and (more or await self._has_more(queue))
        self._follow(clock.monotonic())
        place = lane.arrives(id, job.deaths, others, self._work.free)
        if place is RedeliveryDecision.RUN:
            await self._crashes.note(job, f"it is tried beside at most {lane.width - 1} others like it")
            self._tried[job] = None
            self._work.begin(job).add_done_callback(lambda task: self._left(job))
            return
        if place is RedeliveryDecision.FULL:
            self._window.close(queue)
        await self._aside(job, f"{SET_ASIDE_PREFIX} behind those with fewer deaths")

    def _lane(self, job: CommandDelivery) -> RedeliveryPolicy:
        return self._lanes.setdefault(job.deliveries[0].queue, RedeliveryPolicy(self._places))

    def _left(self, job: CommandDelivery) -> None:
        self._tried.pop(job, None)
        self._lane(job).leaves(job.command.id)
        self.look((), clock.monotonic())

    async def _has_more(self, queue: str) -> bool:
        try:
            count = await self._broker.message_count(queue)
        except Unavailable:
            return False
        return count is not None and count[0] > 0

    async def _aside(self, job: CommandDelivery, why: str, *, alone: bool = False) -> None:
        await self._crashes.note(job, why)
        LOGGER.warning("workers died with %s, so many: %d; %s", job.command.type, job.deaths, why, extra=job.told)
        await self._desk.set_aside([job], alone=alone)

    async def _be_alone(self, job: CommandDelivery) -> None:
        """Only one waits for that here, for whoever waits here while another is at work would seem to be guilty."""
        if self._sole is not None and not self._sole.done():
            return await self._desk.set_aside([job], alone=True)
        if clock.monotonic() < self._rest_until or self._hindered & self._work.beside(job):
            return self._hold(job)
        await self._outage.note(KEY, f"{job.command.type} is tried alone, for {job.deaths} workers died with it")
        self._waits[job] = None
        self._sole = asyncio.create_task(self._alone(job), name="a command alone")
        return None

    async def _alone(self, job: CommandDelivery) -> None:
        try:
            if not await self._emptied(job):
                await self._rest(job, f"{SET_ASIDE_PREFIX} for a worker that has nothing else at work")
            elif not await self._crashes.note(job, TRIED_ALONE):
                await self._rest(job, f"{SET_ASIDE_PREFIX} to be tried alone: the database could not take that down")
            else:
                self._waits.pop(job, None)
                await asyncio.shield(self._work.begin(job))
        finally:
            await self._outage.over(KEY)

    async def _emptied(self, job: CommandDelivery) -> bool:
        try:
            async with asyncio.timeout(ALONE_TIMEOUT_S):
                await self._work.emptied(job)
        except TimeoutError:
            return False
        return True

    async def _rest(self, job: CommandDelivery, why: str) -> None:
        """Lets an emptier worker have it: here it would hold up all others for as long as they last."""
        self._rest_until = clock.monotonic() + ALONE_COOLDOWN_S
        self._hindered = self._work.beside(job)
        await self._aside(job, why, alone=True)
        self._waits.pop(job, None)

    def _hold(self, job: CommandDelivery) -> None:
        """Puts it back a little later: at once, it might be here again at once."""
        self._waits[job] = None
        task = asyncio.create_task(self._put_back(job), name="a command that is to be alone elsewhere")
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def _put_back(self, job: CommandDelivery) -> None:
        await asyncio.sleep(ALONE_HOLD_S)
        await self._crashes.note(job, f"{SET_ASIDE_PREFIX} for a worker that has nothing else at work")
        await self._desk.set_aside([job], alone=True)
        self._waits.pop(job, None)
