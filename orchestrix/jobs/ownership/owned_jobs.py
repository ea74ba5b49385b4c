"""Owned jobs: the channels by which a node consumes the jobs that it owns, from their start to their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from orchestrix import crash
from orchestrix.broker.port import Broker, Consumer, Delivery, LinkState
from orchestrix.broker.topology import job_channels, logs_queue, status_queue
from orchestrix.domain import jobs as rules
from orchestrix.errors import RetryableError, Unavailable
from orchestrix.jobs.events import ChannelBatch, ChannelState, JobEventListener
from orchestrix.lifecycle import Loop, WakeSignal, backoff
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs

log = logging.getLogger("orchestrix.jobs")

EVENT_PREFETCH: Final = 200
"""Unacknowledged messages of a queue."""
FIRST_EVENTS_TIMEOUT_S: Final = 0.1
"""Seconds for which a job's first messages are waited for before it is checked whether it has ended already."""
JOBS_PER_CONNECTION: Final = 900
"""Jobs whose channels one connection carries: brokers allow some two thousand channels, or fewer."""
QUEUE_DELETIONS_PER_BATCH: Final = 50
"""Jobs whose queues are deleted together."""


Reading = tuple[int, int]
"""The epoch under which a job is consumed, and the generation of its link's connection."""


@dataclass(slots=True)
class OwnedJob:
    """A job that this node owns, under this epoch, and consumes."""

    job_id: str
    epoch: int
    link: JobConnection
    consumer: Consumer
    reading: asyncio.Task[None] | None = None


@dataclass(slots=True)
class JobConnection:
    """A connection that carries the channels of jobs and nothing else."""

    broker: Broker
    jobs: int = 0


class OwnedJobs:
    """The jobs that this node consumes. `open_link` makes a connection; each job has a channel of its own on one.

    A channel is left by closing it, so that what is not acknowledged goes to the next owner, in order.
    """

    def __init__(
        self, database: Database, events: JobEventListener, node: str, open_link: Callable[[int], Broker]
    ) -> None:
        self._database = database
        self._events = events
        self._node = node
        self._open_link = open_link
        self._links: list[JobConnection] = []
        self._opening = asyncio.Lock()
        self._consumed: dict[str, OwnedJob] = {}
        self._beginning: dict[str, int] = {}
        self._ending: dict[str, int] = {}
        self._without_queues: set[str] = set()
        """Those of `_ending` that no queues were declared for."""
        self._end_wake = WakeSignal()
        self._loop = Loop("ended jobs", self._end)
        self._failures = 0

    @property
    def count(self) -> int:
        """How many jobs it consumes."""
        return len(self._consumed)

    @property
    def epochs(self) -> dict[str, int]:
        """What it consumes, or is just clearing away, and under which epochs."""
        return {**self._ending, **{owned.job_id: owned.epoch for owned in self._consumed.values()}, **self._beginning}

    @property
    def readings(self) -> dict[str, Reading]:
        """How each job is consumed whose connection is up: another connection is another reading."""
        up = [one for one in self._consumed.values() if one.link.broker.state is LinkState.UP]
        return {one.job_id: (one.epoch, one.link.broker.generation) for one in up}

    def reads(self, job_id: str) -> bool:
        """Whether it consumes the job, or has just begun to."""
        return job_id in self._consumed or job_id in self._beginning

    async def start(self) -> None:
        """Begins to clear away what is complete."""
        await self._loop.start()

    async def stop(self) -> None:
        """Leaves every channel, then closes the connections."""
        await self._loop.stop()
        await self.leave(list(self._consumed))
        await asyncio.gather(*(link.broker.stop() for link in self._links))
        self._links.clear()

    async def consume(self, job_id: str, epoch: int, *, late: bool = False) -> None:
        """Begins to consume a job that this node owns; one under an older epoch is left.

        With `late` it can have ended since this node became its owner, by reports that did not come by its queues.
        """
        if self.epochs.get(job_id, -1) >= epoch:
            return
        self._beginning[job_id] = epoch
        try:
            if (former := self._consumed.get(job_id)) is not None:
                await self._leave(former)
            self._ending.pop(job_id, None)
            self._without_queues.discard(job_id)
            await self._begin(job_id, epoch, late)
        finally:
            self._beginning.pop(job_id, None)

    async def _begin(self, job_id: str, epoch: int, late: bool) -> None:
        link = await self._link()
        channels = [status_queue(job_id), logs_queue(job_id)]
        wanted = partial(self._is_owned, job_id, epoch)
        consumer = await link.broker.consume(
            channels, EVENT_PREFETCH, own_topology=job_channels(job_id), dynamic_topology=wanted
        )
        owned = self._consumed[job_id] = OwnedJob(job_id, epoch, link, consumer)
        owned.reading = asyncio.create_task(self._read(owned, late or epoch > 1), name=f"channel of job {job_id}")

    async def _is_owned(self, job_id: str, epoch: int) -> bool:
        """Whether missing queues are to be declared again: not those of a job that was cleared away."""
        try:
            async with self._database.read() as connection:
                job = await jobs.get(connection, job_id)
        except RetryableError:
            return False
        return job is not None and bool(job.channels) and (job.owner, job.owner_epoch) == (self._node, epoch)

    async def leave(self, job_ids: Iterable[str]) -> None:
        """Stops consuming jobs; what is unacknowledged goes to the next owner."""
        owned = [self._consumed[job_id] for job_id in job_ids if job_id in self._consumed]
        await asyncio.gather(*(self._leave(one) for one in owned))

    async def delete_channels(self, job_id: str) -> None:
        """Stops consuming a job that has ended, and deletes its queues with all that is still in them."""
        owned = self._consumed.get(job_id)
        if owned is not None:
            self._ending[job_id] = owned.epoch
            await self._leave(owned)
            self._end_wake.set()

    def clear_unreported(self, job_id: str, epoch: int) -> None:
        """Clears away a job that has ended, and that no executor has reported: it has no queues."""
        if job_id not in self.epochs:
            self._without_queues.add(job_id)
            self._clear(job_id, epoch)

    async def clear(self, job_id: str, epoch: int) -> None:
        """Clears away a job that has ended without what came by its queues; another node may have declared these.

        One that begins to be consumed is looked at once it is.
        """
        if job_id in self._consumed:
            await self.delete_channels(job_id)
        elif job_id not in self.epochs:
            self._clear(job_id, epoch)

    def _clear(self, job_id: str, epoch: int) -> None:
        self._ending[job_id] = epoch
        self._end_wake.set()

    async def _link(self) -> JobConnection:
        async with self._opening:
            link = next((one for one in self._links if one.jobs < JOBS_PER_CONNECTION), None)
            if link is None:
                link = JobConnection(self._open_link(len(self._links)))
                await link.broker.start()
                self._links.append(link)
            link.jobs += 1
            return link

    async def _leave(self, owned: OwnedJob) -> None:
        """Closes the channel first: what its reader still handles is then not acknowledged."""
        if self._consumed.get(owned.job_id) is owned:
            del self._consumed[owned.job_id]
            owned.link.jobs -= 1
        await owned.consumer.close()
        if owned.reading is not None and owned.reading is not asyncio.current_task():
            owned.reading.cancel()
            with suppress(asyncio.CancelledError):
                await owned.reading

    async def _read(self, owned: OwnedJob, may_have_ended: bool) -> None:
        # Its last message may have come to the previous owner, or to this node in a report.
        if may_have_ended and not await self._continues(owned, await self._first(owned)):
            return
        while deliveries := await owned.consumer.receive(EVENT_PREFETCH):
            if not await self._continues(owned, deliveries):
                return

    @staticmethod
    async def _first(owned: OwnedJob) -> Sequence[Delivery]:
        """What has come when it begins; nothing, if nothing comes for a moment."""
        try:
            async with asyncio.timeout(FIRST_EVENTS_TIMEOUT_S):
                return await owned.consumer.receive(EVENT_PREFETCH)
        except TimeoutError:
            return []

    async def _continues(self, owned: OwnedJob, deliveries: Sequence[Delivery]) -> bool:
        """Whether more is to be consumed once this is stored."""
        heard = ChannelBatch(owned.job_id, owned.epoch, owned.link.broker, owned.consumer, deliveries)
        verdict = await self._events.handle(heard)
        if verdict is ChannelState.LOST:
            log.info("job %s now belongs to another node", owned.job_id)
            await self._leave(owned)
        elif verdict is ChannelState.COMPLETE:
            await self.delete_channels(owned.job_id)
        return verdict is ChannelState.GOES_ON

    async def _end(self) -> None:
        if not self._ending:
            await self._end_wake.wait(None)
            return
        batch = dict(list(self._ending.items())[:QUEUE_DELETIONS_PER_BATCH])
        crash.point("jobs.end.before_delete")
        try:
            await asyncio.gather(*(self._delete(job_id) for job_id in await self._ended(batch)))
            crash.point("jobs.end.after_delete")
            retried = await self._database.run(lambda tx: self._close(tx, batch))
        except Unavailable:
            self._failures += 1
            await asyncio.sleep(backoff(self._failures))
            return
        crash.point("jobs.end.after_commit")
        self._failures = 0
        for job_id in batch:
            self._ending.pop(job_id, None)
        unread = self._without_queues & batch.keys()
        self._without_queues -= unread
        for job_id in retried:
            if job_id not in unread:
                await self.consume(job_id, batch[job_id])

    async def _ended(self, batch: Iterable[str]) -> list[str]:
        """Those whose queues are to be deleted: a job that was retried since its end needs them."""
        there = [job_id for job_id in batch if job_id not in self._without_queues]
        async with self._database.read() as connection:
            return [job.id for job in await jobs.of_ids(connection, there) if job.ended]

    async def _delete(self, job_id: str) -> None:
        if not self._links:  # no job has been consumed yet
            (await self._link()).jobs -= 1
        link = self._links[hash(job_id) % len(self._links)]
        for queue in (status_queue(job_id), logs_queue(job_id)):
            await link.broker.delete(queue)

    async def _close(self, tx: Transaction, batch: dict[str, int]) -> list[str]:
        """Stores that they are cleared away; the ids of those that were retried, and are consumed again."""
        found = await jobs.lock(tx, batch)
        now = self._database.now()
        mine = [job for job in found.values() if (job.owner, job.owner_epoch) == (self._node, batch[job.id])]
        ended = [job for job in mine if job.ended]
        await jobs.store(tx, [(job.version, rules.closed(job, now)) for job in ended])
        await outbox.delete(tx, [job.history_id for job in ended if job.history_id is not None])  # it is not needed now
        return [job.id for job in mine if not job.ended]
