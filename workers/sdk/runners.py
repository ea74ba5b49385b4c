"""How many commands are worked on at once, and in which lane?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from app import clock, crash
from app.config import WorkerSettings
from app.lifecycle import backoff
from sagas.engine.messages import StepError

from . import events
from .context import LOGGER
from .desk import Desk
from .errors import OWN_TROUBLE
from .failures import given_up
from .handlers import HandlerTable
from .invoke import invoke
from .job import Job
from .limit import MoreTime
from .outage import Outage
from .reporter import Report, Reporter
from .suspects import Suspects
from .triage import Triage

STALE: Final = 1.0
"""Seconds after which a look at the row is too old to begin the work on it."""


class Runners:
    """As many tasks as commands may run at once, and one for redelivered commands, which run one after the other.

    A redelivered command may be what ended its last reader: it is looked at, and run, apart from the others.
    """

    def __init__(
        self,
        desk: Desk,
        handlers: HandlerTable,
        reporter: Reporter,
        outage: Outage,
        settings: WorkerSettings,
        more: MoreTime,
    ) -> None:
        self._desk = desk
        self._handlers = handlers
        self._reporter = reporter
        self._outage = outage
        self._settings = settings
        self._more = more
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._ready: asyncio.Queue[Job] = asyncio.Queue()
        self._alone = Suspects()
        self._busy: set[Job] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def busy(self) -> int:
        """How many commands are worked on."""
        return len(self._busy)

    def put(self, job: Job) -> None:
        """Puts the job in its lane; returns at once."""
        if job.redelivered:
            self._alone.put(job)
        else:
            self._ready.put_nowait(job)

    def start(self, triage: Triage) -> None:
        """Begins to work; `triage` looks again at what had to wait."""
        self._triage = triage
        lanes = [self._ready.get] * self._settings.concurrency + [self._alone.take]
        self._tasks = [asyncio.create_task(self._serve(lane), name="runner") for lane in lanes]

    async def stop(self, timeout: float) -> None:
        """Gives back what has not begun, and waits up to `timeout` seconds for the rest, which is then cancelled."""
        await self._desk.give_back(self._drain_ready() + self._alone.drain())
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            LOGGER.warning("did not end in time, and will be done again: %d of the commands", len(self._busy))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    def _drain_ready(self) -> list[Job]:
        return [self._ready.get_nowait() for _ in range(self._ready.qsize())]

    async def _serve(self, take: Callable[[], Awaitable[Job]]) -> None:
        task = asyncio.current_task()
        while True:
            job = await take()
            self._busy.add(job)
            self._quiet.clear()
            try:
                async with self._slots:
                    await self._run(job)
            except BaseException as error:
                if given_up(error, task):
                    raise
                LOGGER.exception("the worker itself failed at %s", job.command.type)
                await self._desk.give_back([job])
            finally:
                self._busy.discard(job)
                if not self._busy:
                    self._quiet.set()

    async def _run(self, job: Job) -> None:
        failures = 0
        try:
            while await self._due(job):
                crash.point("worker.after_guard")
                if await self._attempt(job, failures + 1):
                    return
                failures += 1
        finally:
            if failures:
                await self._outage.over(job.command.id)

    async def _due(self, job: Job) -> bool:
        """Whether the work is to begin now; if not, the job has been taken care of."""
        if self._desk.stopping.is_set():
            await self._desk.give_back([job])
            return False
        if not self._desk.alive(job):
            self._desk.forget(job)
            return False
        if job.looked is not None and clock.monotonic() - job.looked <= STALE:
            return True
        return bool(await self._triage.look([job]))

    async def _attempt(self, job: Job, failures: int) -> bool:
        """Whether there is something to report; if not, something of the worker's own is away."""
        if job.delivery_count >= self._settings.max_deliveries:
            self._give_up(job)
            return True
        try:
            outgoing, good = await invoke(self._handlers[job.command.type], job, self._more)
        except OWN_TROUBLE as error:
            await self._outage.note(job.command.id, error)
            await self._desk.pause(backoff(failures))
            return False
        crash.point("worker.after_effect")
        self._reporter.add(
            Report(outgoing, "done" if good else "failed", job, instead=(partial(events.unsendable, job),))
        )
        return True

    def _give_up(self, job: Job) -> None:
        """Fails the step before the broker's own delivery limit takes the command away without a word."""
        message = f"{job.command.type} was given to workers {job.delivery_count} times, and none lived to answer"
        LOGGER.error("%s: it is not tried again", message, extra=job.told)
        outgoing = events.failed(job, StepError("WorkerCrashed", message, retryable=False))
        self._reporter.add(Report(outgoing, "failed", job, instead=(partial(events.unsendable, job),)))
