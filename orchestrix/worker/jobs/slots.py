"""Job slots: the attempts that the worker holds, and the consumer that fills free slots."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from orchestrix import clock, crash
from orchestrix.broker.port import Consumer, Delivery
from orchestrix.lifecycle import WakeSignal
from orchestrix.telemetry import log_events
from orchestrix.worker.commands.stuck_slots import STUCK_SLOT_HINT
from orchestrix.worker.context import LOGGER
from orchestrix.worker.delivery_spans import DUPLICATE, end_ignored
from orchestrix.worker.error_mapping import ends_task, printable
from orchestrix.worker.jobs.attempt import AttemptRunner
from orchestrix.worker.jobs.dispatch import JobCancel, JobDispatch
from orchestrix.worker.jobs.outcome import AttemptOutcome
from orchestrix.worker.jobs.spans import begin_attempt
from orchestrix.worker.jobs.stop_signal import StopCause

T = TypeVar("T")

MAX_REQUEUES: Final = 5
"""A dispatch that was requeued so often is kept until a slot is free here: some brokers count redeliveries, and drop
it."""
RECENT_JOBS_LIMIT: Final = 1000
"""How many of the latest ended jobs are remembered."""
ENDED_HEARTBEATS: Final = 3
"""An ended attempt that has declared the channels of its job again is named in so many further heartbeats."""
MEMORY_S: Final = 3600.0
MEMORY_LIMIT: Final = 10_000


@dataclass(slots=True)
class JobCounts:
    """How many attempts ended in which way since the worker's start."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    joined: int = 0
    """Further copies of the dispatch of an attempt that was in flight, or over."""
    dead: int = 0
    """They could not be parsed, or the database does not know them: dead-lettered."""
    stale: int = 0
    """They were of attempts that are over, or that other workers run."""
    lost: int = 0
    """They were redelivered to other workers before the work had begun."""


class RecentMemory(Generic[T]):
    """A map that keeps the latest ten thousand entries, each for an hour."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, T]] = {}

    def put(self, key: str, value: T) -> None:
        """Stores `value`."""
        self._entries.pop(key, None)
        self._entries[key] = clock.monotonic() + MEMORY_S, value
        if len(self._entries) > MEMORY_LIMIT:
            del self._entries[next(iter(self._entries))]

    def get(self, key: str) -> T | None:
        """The stored value, or None."""
        until, value = self._entries.get(key, (0.0, None))
        return value if until > clock.monotonic() else None


class JobSlots:
    """The attempts in flight by their history id, at most `slots` of them, and the consumer of their dispatches.

    While all slots are taken nothing is consumed: other workers may have free slots. A slot is free again when nothing
    of the function runs any more, which may be after the attempt's end.
    """

    def __init__(
        self,
        consumer: Consumer,
        slots: int,
        make: Callable[[JobDispatch, Delivery], AttemptRunner],
        counts: JobCounts,
        worker_id: str,
    ) -> None:
        self.worker_id = worker_id
        self.attempts: dict[str, AttemptRunner] = {}
        self.recent: deque[str] = deque(maxlen=RECENT_JOBS_LIMIT)
        """The ids of the jobs whose attempts have ended here, the last one last."""
        self.stopping = False
        self.database_down = False
        """Nothing is consumed: the database, which knows what is current, is unavailable."""
        self.lost = 0
        """How many slots are taken by functions that still run after their attempt has ended."""
        self.abandoned = 0
        """How many attempts had not ended when the worker's time to stop was over."""
        self.idle = asyncio.Event()
        self.idle.set()
        self._consumer, self._slot_count, self._make, self._counts = consumer, slots, make, counts
        self._tasks: set[asyncio.Task[None]] = set()
        self.check_again: Callable[[Sequence[Delivery]], Awaitable[None]] = consumer.requeue
        """Rechecks dispatches that were kept once a slot is free: they may be stale by then."""
        self._kept: list[tuple[JobDispatch, Delivery]] = []
        self._checking: list[tuple[JobDispatch, Delivery]] = []
        self._recently_ended: dict[str, tuple[JobDispatch, int]] = {}
        self._ended: RecentMemory[bool] = RecentMemory()
        self._cancelled: RecentMemory[str] = RecentMemory()
        self._slot_freed = WakeSignal()
        self._paused = False
        self._lock = asyncio.Lock()

    async def round(self) -> None:
        """Waits until a slot is free, and gives it to a kept dispatch, else to the next one."""
        await self._slot_freed.wait(None)
        while self._kept and not self._is_full:
            free = self._slot_count - len(self._tasks)
            self._checking, self._kept = self._kept[:free], self._kept[free:]
            try:
                await self.check_again([delivery for _, delivery in self._checking])
            finally:
                self._checking = []
        await self.follow()

    async def admit(self, dispatch: JobDispatch, delivery: Delivery) -> bool:
        """Begins the attempt; False if the delivery must be requeued."""
        if self.stopping:
            return False
        if await self._is_copy(dispatch, delivery):
            return True
        if self._is_full:
            return self._keep(dispatch, delivery)
        self._begin(dispatch, delivery)
        return True

    async def follow(self) -> None:
        """Consumes while a slot is free, and only then."""
        async with self._lock:
            full = self.stopping or self.database_down or self._is_full
            if full and not self._paused:
                self._paused = True
                await self._consumer.pause()
            elif self._paused and not full:
                self._paused = False
                await self._consumer.resume()

    def cancel(self, cancel: JobCancel) -> None:
        """Stops the attempts concerned, and remembers the cancel for dispatches still in flight."""
        reason = cancel.reason or "it was cancelled"
        for attempt in self.attempts.values():
            if cancel.history_id in (None, attempt.dispatch.history_id) and attempt.dispatch.job_id == cancel.job_id:
                attempt.stop_signal.set(StopCause.CANCELLED, reason)
        self._cancelled.put(cancel.history_id or cancel.job_id, reason)

    def stop_now(self, reason: str) -> None:
        """Asks all running attempts to stop now."""
        for attempt in self.attempts.values():
            attempt.stop_signal.set(StopCause.WORKER_STOPPED, reason)
            attempt.stop_signal.set_urgent()

    async def requeue(self) -> None:
        """Requeues the kept dispatches for other workers."""
        kept, self._kept = self._kept, []
        await self._consumer.requeue([delivery for _, delivery in kept])

    async def clear(self) -> None:
        """Ends whatever is left."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    @property
    def dispatches(self) -> list[JobDispatch]:
        """The attempts in flight."""
        return [attempt.dispatch for attempt in self.attempts.values()]

    def heartbeat_dispatches(self) -> list[JobDispatch]:
        """What the next heartbeat must name; called once per heartbeat.

        Besides the attempts in flight these are the ones that wait here for a slot, whose dispatches no other worker
        can get; and some that have ended, of jobs whose channels were missing: if the job was over long ago, only a
        heartbeat shows that its channels must be deleted once more.
        """
        ended, self._recently_ended = self._recently_ended, {}
        self._recently_ended = {name: (dispatch, left - 1) for name, (dispatch, left) in ended.items() if left > 1}
        kept = {one.history_id: one for one, its in (*self._kept, *self._checking) if self._consumer.alive(its)}
        more = {**{name: dispatch for name, (dispatch, _) in ended.items()}, **kept}
        return [*self.dispatches, *(dispatch for name, dispatch in more.items() if name not in self.attempts)]

    @property
    def _is_full(self) -> bool:
        return len(self._tasks) >= self._slot_count

    # The lifecycle of an attempt.

    async def _is_copy(self, dispatch: JobDispatch, delivery: Delivery) -> bool:
        attempt = self.attempts.get(dispatch.history_id)
        if attempt is None and not self._ended.get(dispatch.history_id):
            return False
        self._counts.joined += 1
        end_ignored(begin_attempt(dispatch, delivery, self.worker_id), DUPLICATE)
        if attempt is None or attempt.accepted:
            await self._consumer.acknowledge([delivery])
        else:
            attempt.deliveries.append(delivery)
        return True

    def _keep(self, dispatch: JobDispatch, delivery: Delivery) -> bool:
        if delivery.delivery_count < MAX_REQUEUES:
            return False
        self._kept.append((dispatch, delivery))
        return True

    def _begin(self, dispatch: JobDispatch, delivery: Delivery) -> None:
        attempt = self.attempts[dispatch.history_id] = self._make(dispatch, delivery)
        reason = self._cancelled.get(dispatch.history_id) or self._cancelled.get(dispatch.job_id)
        if reason is not None:
            attempt.stop_signal.set(StopCause.CANCELLED, reason)
        self.idle.clear()
        task = asyncio.create_task(self._serve(attempt), name=f"attempt {dispatch.history_id}")
        self._tasks.add(task)
        task.add_done_callback(self._leave)

    async def _serve(self, attempt: AttemptRunner) -> None:
        task = asyncio.current_task()
        try:
            self._count(attempt, await attempt.run(self._accept))
        except BaseException as error:
            if ends_task(error, task):
                raise
            log_fields = attempt.dispatch.log_fields
            LOGGER.error(
                "internal error of the worker at job %s",
                attempt.dispatch.handler,
                exc_info=printable(error),
                extra={**log_fields, "event": log_events.WORKER_ERROR},
            )
            await self._consumer.requeue(attempt.deliveries)
        finally:
            self._forget(attempt)
        self.lost += 1
        try:
            if self.lost == self._slot_count and not attempt.is_gone:
                LOGGER.error(
                    "jobs paused: jobs that did not stop when cancelled block all slots; %s",
                    STUCK_SLOT_HINT,
                    extra={"event": log_events.WORK_PAUSED},
                )
            await attempt.gone()
        finally:
            self.lost -= 1

    async def _accept(self, attempt: AttemptRunner) -> bool:
        """Acknowledges the dispatch, unless it was lost with its channel: then it is redelivered, to any worker."""
        attempt.accepted = any(self._consumer.alive(one) for one in attempt.deliveries)
        crash.point("worker.jobs.before_ack")
        await self._consumer.acknowledge(attempt.deliveries)
        return attempt.accepted

    def _count(self, attempt: AttemptRunner, ending: AttemptOutcome | None) -> None:
        if ending is None:
            self._counts.lost += 1
            return
        self._ended.put(attempt.dispatch.history_id, True)
        name = ending.status.lower()
        setattr(self._counts, name, getattr(self._counts, name) + 1)
        LOGGER.debug("job %s: %s", attempt.dispatch.handler, ending.status, extra=attempt.dispatch.log_fields)

    def _forget(self, attempt: AttemptRunner) -> None:
        self.attempts.pop(attempt.dispatch.history_id, None)
        self.recent.append(attempt.dispatch.job_id)
        if attempt.channels_redeclared:
            self._recently_ended[attempt.dispatch.history_id] = attempt.dispatch, ENDED_HEARTBEATS
        if not self.attempts:
            self.idle.set()

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slot_freed.set()
