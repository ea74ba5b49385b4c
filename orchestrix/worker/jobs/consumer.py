"""Job consumer: turns dispatches that the database confirms into attempts, and dead-letters or requeues the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from orchestrix import clock, crash
from orchestrix.broker.dead_letter import dead_letter, publish_dead_letter
from orchestrix.broker.port import Broker, Consumer, Delivery
from orchestrix.lifecycle import backoff
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.telemetry import log_events
from orchestrix.worker.backpressure import REOPEN_AFTER_S
from orchestrix.worker.context import LOGGER
from orchestrix.worker.delivery_spans import begin_delivery, dead_letter_span, end_ignored
from orchestrix.worker.error_mapping import ends_task
from orchestrix.worker.errors import INFRASTRUCTURE_ERRORS
from orchestrix.worker.jobs.dispatch import JobCancel, read
from orchestrix.worker.jobs.slots import JobCounts, JobSlots
from orchestrix.worker.jobs.spans import begin_attempt
from orchestrix.worker.jobs.state_guard import (
    CurrentDispatch,
    DispatchRunsElsewhere,
    DispatchVerdict,
    InvalidDispatch,
    ReceivedDispatch,
    StaleDispatch,
    StateLookup,
    UnknownDispatch,
)

T = TypeVar("T")

BATCH_LIMIT: Final = 500
RECEIVE_PAUSE_S: Final = 0.1
STALE: Final = "stale"
HOLDER_POLL_INTERVAL_S: Final = 1.0
"""Seconds between two checks whether the worker that has begun an attempt lives."""
ROW_VISIBLE_TIMEOUT_S: Final = 2.0
"""Seconds after which the row of a dispatch would be visible, if there were one."""


class JobConsumer:
    """Parses each dispatch and checks it against the database: it gets a slot, is dead-lettered, or is requeued for
    other workers.

    While the database is unavailable it keeps what it has and takes nothing; after five minutes others get it.
    """

    def __init__(
        self, broker: Broker, consumer: Consumer, job_slots: JobSlots, counts: JobCounts, check_state: StateLookup
    ) -> None:
        self._broker, self._consumer, self._job_slots, self._counts = broker, consumer, job_slots, counts
        self._check_state = check_state
        self._tasks: set[asyncio.Task[None]] = set()
        job_slots.check_again = self._take

    async def round(self) -> None:
        """Takes one batch."""
        deliveries = await self._consumer.receive(BATCH_LIMIT)
        if not deliveries:  # the consumer is closed: nothing will come before this loop is stopped
            await asyncio.sleep(RECEIVE_PAUSE_S)
            return
        crash.point("worker.jobs.after_receive")
        await self._take(deliveries)

    def stop(self) -> None:
        """Dead-letters and checks nothing more: the broker redelivers what is left."""
        for task in self._tasks:
            task.cancel()

    async def _take(self, deliveries: Sequence[Delivery]) -> None:
        surplus = await self._sort_by_verdict([one for one in map(self._read_dispatch, deliveries) if one is not None])
        await self._job_slots.follow()  # first, else what is requeued is redelivered here at once
        await self._consumer.requeue(surplus)

    def _read_dispatch(self, delivery: Delivery) -> ReceivedDispatch | None:
        try:
            return ReceivedDispatch(read(delivery.body), delivery)
        except UnreadableMessage as unreadable:
            self._refuse(delivery, str(unreadable))
            return None

    async def _sort_by_verdict(self, asked: Sequence[ReceivedDispatch]) -> list[Delivery]:
        """Those that must be requeued. An error of one does not affect the rest of the batch."""
        if not asked:
            return []
        verdicts = await self._tried(lambda: self._read_verdicts(asked), asked[0].delivery)
        if verdicts is None:
            return [one.delivery for one in asked]
        kept = {id(one) for one, verdict in verdicts if await self._tried(self._doing(one, verdict), one.delivery)}
        return [one.delivery for one in asked if id(one) not in kept]

    async def _tried(self, work: Callable[[], Awaitable[T]], delivery: Delivery) -> T | None:
        """What `work` returns; None where it fails, which is logged."""
        task = asyncio.current_task()
        try:
            return await work()
        except BaseException as error:
            if ends_task(error, task):
                raise
            LOGGER.exception(
                "internal error of the worker at a message from %s",
                delivery.queue,
                extra={"event": log_events.WORKER_ERROR},
            )
            await asyncio.sleep(RECEIVE_PAUSE_S)  # it may be redelivered at once
            return None

    async def _read_verdicts(self, asked: Sequence[ReceivedDispatch]) -> list[tuple[ReceivedDispatch, DispatchVerdict]]:
        """The verdicts on those whose channel is open, as soon as the database is reachable."""
        failures, since = 0, clock.monotonic()
        while True:
            living = [one for one in asked if self._consumer.alive(one.delivery)]
            try:
                found = list(zip(living, await self._check_state(living), strict=True))
                break
            except INFRASTRUCTURE_ERRORS as error:
                if self._job_slots.stopping:
                    found = []
                    break
                failures += 1
                await self._wait(failures, error)
                if clock.monotonic() - since >= REOPEN_AFTER_S:
                    since = clock.monotonic()
                    LOGGER.warning(
                        "jobs paused for %d s, requeueing them for other workers",
                        REOPEN_AFTER_S,
                        extra={"event": log_events.WORK_PAUSED},
                    )
                    await self._consumer.reopen()
        if failures:
            LOGGER.warning("jobs resumed", extra={"event": log_events.WORK_RESUMED})
            self._job_slots.database_down = False
            await self._job_slots.follow()
        return found

    async def _wait(self, failures: int, error: Exception) -> None:
        if failures == 1:
            LOGGER.warning("jobs paused: %s", error, extra={"event": log_events.WORK_PAUSED})
        self._job_slots.database_down = True
        await self._job_slots.follow()
        await asyncio.sleep(backoff(failures))

    def _doing(self, one: ReceivedDispatch, verdict: DispatchVerdict) -> Callable[[], Awaitable[bool]]:
        return lambda: self._do(one, verdict)

    async def _do(self, one: ReceivedDispatch, verdict: DispatchVerdict) -> bool:
        """False if the delivery must be requeued."""
        match verdict:
            case CurrentDispatch(dispatch, cancelled):
                if cancelled is not None:
                    self._job_slots.cancel(JobCancel(dispatch.job_id, dispatch.history_id, cancelled))
                return await self._job_slots.admit(dispatch, one.delivery)
            case StaleDispatch():
                self._counts.stale += 1
                end_ignored(begin_attempt(one.dispatch, one.delivery, self._job_slots.worker_id), STALE)
                await self._consumer.acknowledge([one.delivery])
            case DispatchRunsElsewhere():
                self._begin(self._watch(one, verdict))
            case UnknownDispatch():
                self._begin(self._check_again(one))
            case InvalidDispatch(reason):
                self._refuse(one.delivery, reason)
        return True

    async def _check_again(self, one: ReceivedDispatch) -> None:
        """Checks again for a while: the commit of its row may not be visible here yet. Nothing else waits for that."""
        until = clock.monotonic() + ROW_VISIBLE_TIMEOUT_S
        verdict: DispatchVerdict = UnknownDispatch("unknown")
        while isinstance(verdict, UnknownDispatch) and clock.monotonic() < until:
            await asyncio.sleep(RECEIVE_PAUSE_S)
            [(_, verdict)] = await self._read_verdicts([one]) or [
                (one, StaleDispatch())
            ]  # its channel is lost: it is redelivered
        if isinstance(verdict, UnknownDispatch):
            await self._dead_letter(one.delivery, verdict.reason)
        elif not await self._do(one, verdict):
            await self._consumer.requeue([one.delivery])

    async def _watch(self, one: ReceivedDispatch, first: DispatchRunsElsewhere) -> None:
        """Waits until the worker that has begun it sends one more heartbeat for it, or is silent, or the attempt is
        over.

        A worker that lost the dispatch before its work began lives, but its heartbeats do not name the attempt.
        """
        verdict: DispatchVerdict = first
        while verdict == first:
            await asyncio.sleep(HOLDER_POLL_INTERVAL_S)
            [(_, verdict)] = await self._read_verdicts([one]) or [(one, StaleDispatch())]
        if not await self._do(one, StaleDispatch() if isinstance(verdict, DispatchRunsElsewhere) else verdict):
            await self._consumer.requeue([one.delivery])

    def _refuse(self, delivery: Delivery, reason: str) -> None:
        self._begin(self._dead_letter(delivery, reason))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="dispatch that is not taken")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dead_letter(self, delivery: Delivery, reason: str) -> None:
        self._counts.dead += 1
        span = begin_delivery(delivery)
        letter = dead_letter(delivery, reason)
        publishing = dead_letter_span(letter, delivery, span, {})
        named = replace(delivery, message_id=letter.message_id)
        try:
            await publish_dead_letter(self._broker, self._consumer, [(named, reason)])
        finally:
            publishing.end()
            end_ignored(span, reason)
        await self._consumer.acknowledge([delivery])
