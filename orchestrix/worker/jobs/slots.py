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
from orchestrix.worker.commands.stuck_slots import STUCK_SLOT_HINT
from orchestrix.worker.context import LOGGER
from orchestrix.worker.error_mapping import ends_task, printable
from orchestrix.worker.jobs.attempt import AttemptRunner
from orchestrix.worker.jobs.dispatch import JobCancel, JobDispatch
from orchestrix.worker.jobs.outcome import AttemptOutcome
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
        self._said: dict[str, tuple[float, T]] = {}

    def put(self, key: str, value: T) -> None:
        """Stores `value`."""
        self._said.pop(key, None)
        self._said[key] = clock.monotonic() + MEMORY_S, value
        if len(self._said) > MEMORY_LIMIT:
            del self._said[next(iter(self._said))]

    def get(self, key: str) -> T | None:
        """The stored value, or None."""
        until, value = self._said.get(key, (0.0, None))
        return value if until > clock.monotonic() else None


class JobSlots:
    """The attempts in flight by their history id, at most `places` of them, and the consumer of their dispatches.

    While all slots are taken nothing is consumed: other workers may have free slots. A slot is free again when nothing
    of the function runs any more, which may be after the attempt's end.
    """

    def __init__(
        self, consumer: Consumer, places: int, make: Callable[[JobDispatch, Delivery], AttemptRunner], counts: JobCounts
    ) -> None:
        self.attempts: dict[str, AttemptRunner] = {}
        self.lately: deque[str] = deque(maxlen=RECENT_JOBS_LIMIT)
        """The ids of the jobs whose attempts have ended here, the last one last."""
        self.stopping = False
        self.away = False
        """Nothing is consumed: the database, which knows what is current, is unavailable."""
        self.lost = 0
        """How many slots are taken by functions that still run after their attempt has ended."""
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._consumer, self._places, self._make, self._counts = consumer, places, make, counts
        self._tasks: set[asyncio.Task[None]] = set()
        self.look_again: Callable[[Sequence[Delivery]], Awaitable[None]] = consumer.give_back
        """Rechecks dispatches that were kept once a slot is free: they may be stale by then."""
        self._kept: list[tuple[JobDispatch, Delivery]] = []
        self._looked_at: list[tuple[JobDispatch, Delivery]] = []
        self._remade: dict[str, tuple[JobDispatch, int]] = {}
        self._ended: RecentMemory[bool] = RecentMemory()
        self._cancelled: RecentMemory[str] = RecentMemory()
        self._vacated = WakeSignal()
        self._paused = False
        self._lock = asyncio.Lock()

    async def round(self) -> None:
        """Waits until a slot is free, and gives it to a kept dispatch, else to the next one."""
        await self._vacated.wait(None)
        while self._kept and not self._is_full:
            free = self._places - len(self._tasks)
            self._looked_at, self._kept = self._kept[:free], self._kept[free:]
            try:
                await self.look_again([delivery for _, delivery in self._looked_at])
            finally:
                self._looked_at = []
        await self.follow()

    async def admit(self, order: JobDispatch, delivery: Delivery) -> bool:
        """Begins the attempt; False if the delivery must be requeued."""
        if self.stopping:
            return False
        if await self._is_copy(order, delivery):
            return True
        if self._is_full:
            return self._keep(order, delivery)
        self._begin(order, delivery)
        return True

    async def follow(self) -> None:
        """Consumes while a slot is free, and only then."""
        async with self._lock:
            full = self.stopping or self.away or self._is_full
            if full and not self._paused:
                self._paused = True
                await self._consumer.pause()
            elif self._paused and not full:
                self._paused = False
                await self._consumer.resume()

    def cancel(self, word: JobCancel) -> None:
        """Stops the attempts concerned, and remembers the cancel for dispatches still in flight."""
        reason = word.reason or "it was cancelled"
        for attempt in self.attempts.values():
            if word.history_id in (None, attempt.order.history_id) and attempt.order.job_id == word.job_id:
                attempt.halt.set(StopCause.CANCELLED, reason)
        self._cancelled.put(word.history_id or word.job_id, reason)

    def hurry(self, reason: str) -> None:
        """Tells all running attempts to stop now."""
        for attempt in self.attempts.values():
            attempt.halt.set(StopCause.WORKER_STOPPED, reason)
            attempt.halt.hurry()

    async def give_back(self) -> None:
        """Requeues the kept dispatches for other workers."""
        kept, self._kept = self._kept, []
        await self._consumer.give_back([delivery for _, delivery in kept])

    async def clear(self) -> None:
        """Ends whatever is left."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    @property
    def held(self) -> list[JobDispatch]:
        """The attempts in flight."""
        return [attempt.order for attempt in self.attempts.values()]

    def shown(self) -> list[JobDispatch]:
        """What the next heartbeat must name; called once per heartbeat.

        Besides the attempts in flight these are the ones that wait here for a slot, whose dispatches no other worker
        can get; and some that have ended, of jobs whose channels were missing: if the job was over long ago, only a
        heartbeat shows that its channels must be deleted once more.
        """
        ended, self._remade = self._remade, {}
        self._remade = {name: (order, left - 1) for name, (order, left) in ended.items() if left > 1}
        kept = {one.history_id: one for one, its in (*self._kept, *self._looked_at) if self._consumer.alive(its)}
        more = {**{name: order for name, (order, _) in ended.items()}, **kept}
        return [*self.held, *(order for name, order in more.items() if name not in self.attempts)]

    @property
    def _is_full(self) -> bool:
        return len(self._tasks) >= self._places

    # The lifecycle of an attempt.

    async def _is_copy(self, order: JobDispatch, delivery: Delivery) -> bool:
        attempt = self.attempts.get(order.history_id)
        if attempt is None and not self._ended.get(order.history_id):
            return False
        self._counts.joined += 1
        if attempt is None or attempt.accepted:
            await self._consumer.acknowledge([delivery])
        else:
            attempt.deliveries.append(delivery)
        return True

    def _keep(self, order: JobDispatch, delivery: Delivery) -> bool:
        if delivery.delivery_count < MAX_REQUEUES:
            return False
        self._kept.append((order, delivery))
        return True

    def _begin(self, order: JobDispatch, delivery: Delivery) -> None:
        attempt = self.attempts[order.history_id] = self._make(order, delivery)
        reason = self._cancelled.get(order.history_id) or self._cancelled.get(order.job_id)
        if reason is not None:
            attempt.halt.set(StopCause.CANCELLED, reason)
        self.quiet.clear()
        task = asyncio.create_task(self._serve(attempt), name=f"attempt {order.history_id}")
        self._tasks.add(task)
        task.add_done_callback(self._leave)

    async def _serve(self, attempt: AttemptRunner) -> None:
        task = asyncio.current_task()
        try:
            self._count(attempt, await attempt.run(self._accept))
        except BaseException as error:
            if ends_task(error, task):
                raise
            told = attempt.order.told
            LOGGER.error(
                "internal error of the worker at job %s", attempt.order.handler, exc_info=printable(error), extra=told
            )
            await self._consumer.give_back(attempt.deliveries)
        finally:
            self._forget(attempt)
        self.lost += 1
        try:
            if self.lost == self._places and not attempt.is_gone:
                LOGGER.error("jobs paused: jobs that did not stop when cancelled block all slots; %s", STUCK_SLOT_HINT)
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
        self._ended.put(attempt.order.history_id, True)
        name = ending.status.lower()
        setattr(self._counts, name, getattr(self._counts, name) + 1)
        LOGGER.debug("job %s: %s", attempt.order.handler, ending.status, extra=attempt.order.told)

    def _forget(self, attempt: AttemptRunner) -> None:
        self.attempts.pop(attempt.order.history_id, None)
        self.lately.append(attempt.order.job_id)
        if attempt.remade:
            self._remade[attempt.order.history_id] = attempt.order, ENDED_HEARTBEATS
        if not self.attempts:
            self.quiet.set()

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._vacated.set()
