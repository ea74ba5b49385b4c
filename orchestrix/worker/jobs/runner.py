"""Job runner: starts, runs and stops the job side of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer, Delivery
from orchestrix.broker.topology import (
    DISPATCH_QUEUE_PREFIX,
    cancel_queue,
    dispatch_queue,
    job_channels,
    worker_cancel_queue,
    worker_topology,
)
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.lifecycle import Loop
from orchestrix.quantities import counted
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.heartbeat import Describe, HeartbeatPublisher
from orchestrix.worker.jobs.consumer import JobConsumer
from orchestrix.worker.jobs.dispatch import JobCancel, read_cancel
from orchestrix.worker.jobs.execution import CANCEL_GRACE_S
from orchestrix.worker.jobs.report_buffer import ReportBuffer
from orchestrix.worker.jobs.slots import JobCounts, JobSlots
from orchestrix.worker.jobs.spans import begin_attempt, status_span
from orchestrix.worker.jobs.state_guard import StateLookup

from .attempt import AttemptRunner
from .dispatch import JobDispatch
from .functions import JobTable, check_queue

FINAL_REPORT_TIMEOUT_S: Final = 2.0
"""Seconds that the final messages get at least to be confirmed."""
PREFETCH: Final = 100
RECEIVE_PAUSE_S: Final = 0.1


class CancelListener:
    """Reads the cancel messages of `consumer` and passes them to `on_cancel`. A lost one is repeated after a later
    heartbeat."""

    def __init__(self, consumer: Consumer, on_cancel: Callable[[JobCancel], None]) -> None:
        self._consumer, self._on_cancel = consumer, on_cancel

    async def round(self) -> None:
        """Receives one batch."""
        deliveries = await self._consumer.receive(PREFETCH)
        if not deliveries:
            await asyncio.sleep(RECEIVE_PAUSE_S)
            return
        for delivery in deliveries:
            try:
                self._on_cancel(read_cancel(delivery.body))
            except UnreadableMessage as unreadable:
                LOGGER.warning(
                    "unreadable cancel request of a job: %s", unreadable, extra={"event": log_events.WORKER_ERROR}
                )
        await self._consumer.acknowledge(deliveries)


class JobRunner:
    """Serves job queues: at most `slots` attempts at once, all named in a heartbeat every `heartbeat_s` seconds.

    `check_state` checks which dispatches are current: nothing else is executed.

    `worker_id` is its id in messages, another one at each start. Raises `ConfigError` for a queue that cannot be one,
    or if there is no job.
    """

    def __init__(
        self,
        broker: Broker,
        jobs: JobTable,
        queues: Sequence[str],
        check_state: StateLookup,
        *,
        worker_id: str,
        slots: int,
        stop_timeout: float,
        heartbeat_s: float,
    ) -> None:
        if not jobs:
            what = 'this worker has no jobs: add a module with @job("…")'
            raise ConfigError(f"{what} to ORCHESTRIX_WORKERS or orchestrix.toml")
        for queue in queues:
            check_queue(queue)
        self.queues = tuple(dict.fromkeys(queues or jobs.queues))
        self.worker_id = worker_id
        self.topology = worker_topology(self.queues)
        self.counts = JobCounts()
        self._broker, self._jobs, self._check_state = broker, jobs, check_state
        self._slot_count, self._stop_timeout, self._heartbeat_s = slots, stop_timeout, heartbeat_s
        self._parts: _Parts | None = None
        self._job_slots: JobSlots | None = None
        self._beginning: asyncio.Task[None] | None = None

    @property
    def job_ids(self) -> list[str]:
        """The ids of the jobs in flight, also while the runner stops."""
        return [one.job_id for one in self._job_slots.dispatches] if self._job_slots is not None else []

    @property
    def unread(self) -> Sequence[str]:
        """The queues of jobs that it does not read; all before it has begun."""
        return self._parts.unread if self._parts is not None else [dispatch_queue(one) for one in self.queues]

    @property
    def abandoned(self) -> int:
        """How many jobs had not ended when the time to stop was over."""
        return self._job_slots.abandoned if self._job_slots is not None else 0

    @property
    def had(self) -> set[str]:
        """The ids of the jobs in flight, and of the latest that ended: their messages may not have been read yet."""
        return {*self.job_ids, *self._job_slots.recent} if self._job_slots is not None else set()

    @property
    def handlers(self) -> tuple[str, ...]:
        """The jobs that it has functions for."""
        return tuple(self._jobs)

    async def start(self, describe: Describe | None = None) -> None:
        """Consumes jobs as soon as the broker is reachable; returns at once. `describe` says more in each heartbeat."""
        if self._beginning is None:
            self._beginning = asyncio.create_task(self._begin(describe), name="start of jobs")

    async def stop(self, others: Awaitable[object] | None = None) -> None:
        """Takes nothing new, and lets jobs run for up to `stop_timeout` seconds.

        What has not ended then is asked to stop and reported as failed, so that another attempt begins elsewhere at
        once: within about eight seconds more. The heartbeats continue until `others` have ended too.
        """
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            beginning.cancel()
            await asyncio.wait([beginning])
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.stop(self._stop_timeout, others)

    async def _begin(self, describe: Describe | None) -> None:
        """Declares before it consumes, so that no missing queue is reported that is about to be declared."""
        await self._broker.wait_connected()
        with suppress(ConfigError, Unavailable):  # repeated, with its errors logged, before the first heartbeat
            await self._broker.declare(self.topology)
        jobs = await self._broker.consume([dispatch_queue(one) for one in self.queues], self._slot_count)
        listener = worker_cancel_queue(self.worker_id)
        words = await self._broker.consume(
            [cancel_queue(self.worker_id)], PREFETCH, exclusive=True, own_topology=listener
        )
        self._parts = _Parts(self, jobs, words, describe)
        self._job_slots = self._parts.job_slots
        await self._parts.start()

    def make(self, dispatch: JobDispatch, delivery: Delivery) -> AttemptRunner:
        """An attempt that has not begun."""
        span = begin_attempt(dispatch, delivery, self.worker_id)
        report_buffer = ReportBuffer(self._broker, job_channels(dispatch.job_id), partial(status_span, dispatch, span))
        function = self._jobs.get(dispatch.handler)
        queue = delivery.queue.removeprefix(DISPATCH_QUEUE_PREFIX)
        return AttemptRunner(dispatch, function, queue, report_buffer, self.worker_id, span, [delivery])


class _Parts:
    """The loops of a started runner."""

    def __init__(self, runner: JobRunner, jobs: Consumer, words: Consumer, describe: Describe | None) -> None:
        self._consumers = jobs, words
        self.job_slots = JobSlots(jobs, runner._slot_count, runner.make, runner.counts, runner.worker_id)
        self._consumer = JobConsumer(runner._broker, jobs, self.job_slots, runner.counts, runner._check_state)
        self._heartbeat = HeartbeatPublisher(
            runner._broker,
            runner.topology,
            runner.worker_id,
            runner.queues,
            self.job_slots,
            runner._heartbeat_s,
            describe,
        )
        self._loops = (
            Loop("cancel listener", CancelListener(words, self.job_slots.cancel).round),
            Loop("job slots", self.job_slots.round),
            Loop("job consumer", self._consumer.round),
        )

    @property
    def unread(self) -> Sequence[str]:
        """The queues of jobs that it does not read."""
        return self._consumers[0].unread

    async def start(self) -> None:
        await self._heartbeat.start()
        for loop in self._loops:
            await loop.start()

    async def stop(self, timeout: float, others: Awaitable[object] | None) -> None:
        ends = clock.monotonic() + timeout
        self.job_slots.stopping = True
        self._heartbeat.begin_drain()
        await self._stop_receiving()
        await self.job_slots.requeue()
        if not await self._quiet(max(0.0, ends - clock.monotonic())):
            self.job_slots.abandoned = len(self.job_slots.attempts)
            LOGGER.warning(
                "%s did not finish in time; abandoned",
                counted(self.job_slots.abandoned, "job"),
                extra={"event": log_events.WORK_ABANDONED},
            )
            self.job_slots.stop_now("the worker stopped before the job ended")
            await self._quiet(CANCEL_GRACE_S + FINAL_REPORT_TIMEOUT_S)
        await self.job_slots.clear()
        self._consumer.stop()
        for loop in reversed(self._loops):
            await loop.stop()
        if others is not None:
            await asyncio.wait([asyncio.ensure_future(others)])
        await self._heartbeat.stop()
        for consumer in self._consumers:
            await consumer.close()

    async def _stop_receiving(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                await self.job_slots.follow()
        except TimeoutError:
            LOGGER.warning(
                "the broker does not answer; it will redeliver incoming jobs to other workers",
                extra={"event": log_events.WORK_ABANDONED},
            )

    async def _quiet(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self.job_slots.idle.wait()
        except TimeoutError:
            return False
        return True
