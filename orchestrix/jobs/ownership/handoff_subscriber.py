"""Job hand-off subscriber: the side that takes jobs, new ones and those that other nodes hand off.

The side that gives them away is `handoff_publisher`; of all nodes, the one that reads an offer first is the new owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from orchestrix import crash
from orchestrix.broker.dead_letter import publish_dead_letter
from orchestrix.broker.port import Broker, Consumer, Delivery
from orchestrix.broker.topology import JOB_ASSIGNED, JOB_HANDOFF, handoff_ack
from orchestrix.domain import jobs as rules
from orchestrix.domain.handoff import REBALANCE
from orchestrix.domain.jobs import JobRow
from orchestrix.errors import RetryableError, SchemaMismatch
from orchestrix.jobs import messages, outbox_rows, spans
from orchestrix.jobs.messages import HandoffOffer
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.lifecycle import Loop, backoff, shielded
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import executor_jobs, jobs
from orchestrix.saga.messages import UnreadableMessage

T = TypeVar("T")
log = logging.getLogger("orchestrix.jobs")

OFFER_PREFETCH: Final = 20
"""Few, so that what comes at once is spread over the nodes."""


class OwnerlessJobsQueue:
    """One queue of jobs that need an owner, as long as this node takes any.

    It handles a batch with `work`, which may be called again with the same batch. While the database is unavailable it
    keeps what is unacknowledged.
    """

    def __init__(self, broker: Broker, name: str, work: Callable[[Sequence[Delivery]], Awaitable[None]]) -> None:
        self._broker = broker
        self._name = name
        self._work = work
        self._consumer: Consumer | None = None
        self._consuming = False
        self._subscribing = asyncio.Lock()
        self._working: asyncio.Future[None] | None = None
        self._loop = Loop(f"hand-off subscriber {name}", self._round)

    @property
    def consumer(self) -> Consumer:
        """The subscription."""
        assert self._consumer is not None, "it has begun"
        return self._consumer

    async def begin(self) -> None:
        """Subscribes, unless it has, or is to leave meanwhile."""
        self._consuming = True
        async with self._subscribing:
            if self._consumer is not None:
                return
            consumer = await self._broker.consume([self._name], OFFER_PREFETCH)
            if not self._consuming:
                await consumer.close()
                return
            self._consumer = consumer
            await self._loop.start()

    async def leave(self) -> None:
        """Takes no more: finishes what is being written, and closes the channel, which requeues the rest."""
        self._consuming = False
        await self._loop.stop()
        if self._working is not None:
            await asyncio.gather(self._working, return_exceptions=True)
        await self.release()

    async def release(self) -> None:
        """Takes no more, and requeues all, also what may be written yet."""
        self._consuming = False
        await self._loop.stop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def _round(self) -> None:
        consumer = self.consumer
        batch = await consumer.receive(OFFER_PREFETCH)
        failures = 0
        while batch := [one for one in batch if consumer.alive(one)]:
            crash.point("jobs.take.after_receive")
            try:
                self._working = asyncio.ensure_future(self._work(batch))
                await shielded(self._working)
                break
            except (RetryableError, SchemaMismatch) as error:
                failures += 1
                if failures == 1:
                    log.warning("cannot take over jobs yet; retrying: %s", error)
                await asyncio.sleep(backoff(failures))
        crash.point("jobs.take.before_ack")
        await consumer.acknowledge(batch)


class JobHandoffSubscriber:
    """Takes new jobs, and those that other nodes hand off: stores itself as the owner, consumes, then answers.

    Taking is a compare-and-set, so that of two nodes that receive the same job one becomes the owner. `on_taken` is
    called where some are for groups, with those of them that had another owner before.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        owned_jobs: OwnedJobs,
        node: str,
        on_taken: Callable[[Collection[str]], None] = lambda job_ids: None,
    ) -> None:
        self._database = database
        self._on_taken = on_taken
        self._broker = broker
        self._owned_jobs = owned_jobs
        self._node = node
        self._new = OwnerlessJobsQueue(broker, JOB_ASSIGNED, self._accept_new)
        self._offered = OwnerlessJobsQueue(broker, JOB_HANDOFF, self._accept_offered)
        self._leaving = False
        self._released = False
        self._declining = False

    @property
    def _accepts(self) -> bool:
        return not self._leaving and not self._released

    async def start(self) -> None:
        """Begins to take, also after `release`."""
        self._released = False
        if self._accepts:
            await self._new.begin()
        await self._accept_offers()

    async def stop(self) -> None:
        """Takes no more, for good."""
        self._leaving = True
        await self._new.leave()
        await self._offered.leave()

    async def release(self) -> None:
        """Takes no more until `start`, and requeues at once what is unacknowledged."""
        self._released = True
        await self._new.release()
        await self._offered.release()

    async def decline(self) -> None:
        """Takes no jobs that others hand off, until `accept`."""
        self._declining = True
        await self._offered.leave()

    async def accept(self) -> None:
        """Reverts `decline`, but no other reason for which it takes none."""
        self._declining = False
        await self._accept_offers()

    async def _accept_offers(self) -> None:
        if self._accepts and not self._declining:
            await self._offered.begin()

    async def _accept_new(self, batch: Sequence[Delivery]) -> None:
        wanted = [id for id, _ in await self._readable(self._new.consumer, batch, messages.read_job_id)]
        await self._own(await self._database.run(partial(self._write_new, wanted)))

    async def _accept_offered(self, batch: Sequence[Delivery]) -> None:
        offers = await self._readable(self._offered.consumer, batch, messages.read_offer)
        wanted = {one.job_id: one for one, _ in offers if one.from_node != self._node or one.reason != REBALANCE}
        deliveries = {one.job_id: delivery for one, delivery in offers}
        rows = await self._database.run(partial(self._write_offered, wanted, deliveries))
        await self._own(job for job in rows.values() if job.owner == self._node)
        answers = [
            outbox_rows.ack(handoff_ack(offer.from_node), job.id, job.owner, job.owner_epoch)
            for offer in wanted.values()
            if (job := rows.get(offer.job_id)) is not None and job.owner is not None and job.owner != offer.from_node
        ]
        crash.point("jobs.take.before_answer")
        # One that is returned was for a node that is gone: no node waits for it.
        await self._broker.publish(answers)

    async def _own(self, taken: Iterable[JobRow]) -> None:
        crash.point("jobs.take.after_commit")
        wanted = list(taken)
        groups = [job.id for job in wanted if job.queue is None]
        unreported = set[str]()
        if groups:
            async with self._database.read() as connection:
                unreported = set(groups) - await executor_jobs.reported(connection, groups)
            self._on_taken([job.id for job in wanted if job.queue is None and job.owner_epoch > 1])
        for job in wanted:
            if job.id not in unreported:
                await self._owned_jobs.consume(job.id, job.owner_epoch)

    async def _write_new(self, wanted: Sequence[str], tx: Transaction) -> list[JobRow]:
        """Those without owner, as they are now; and those that are this node's already."""
        rows = await jobs.lock(tx, wanted)
        free = [job for job in rows.values() if _is_free(job)]
        taken = await self._take(tx, free)
        return taken + [job for job in rows.values() if job.channels and job.owner == self._node]

    async def _write_offered(
        self, wanted: Mapping[str, HandoffOffer], deliveries: Mapping[str, Delivery], tx: Transaction
    ) -> dict[str, JobRow]:
        """All of them, as they are now."""
        rows = await jobs.lock(tx, wanted)
        fitting = [job for job in rows.values() if job.channels and _as_offered(job, wanted[job.id])]
        spans.hand_off(tx, fitting, self._node, deliveries)
        return {**rows, **{job.id: job for job in await self._take(tx, fitting)}}

    async def _take(self, tx: Transaction, found: Sequence[JobRow]) -> list[JobRow]:
        now = self._database.now()
        taken = [rules.taken(job, self._node, now) for job in found]
        await jobs.store(tx, [(before.version, job) for before, job in zip(found, taken, strict=True)])
        crash.point("jobs.take.before_commit")
        return taken

    async def _readable(
        self, consumer: Consumer, batch: Sequence[Delivery], read: Callable[[bytes], T]
    ) -> list[tuple[T, Delivery]]:
        """The contents of the messages, each with its message; those that cannot be read become dead letters."""
        found: list[tuple[T, Delivery]] = []
        dead: list[tuple[Delivery, str]] = []
        for delivery in batch:
            try:
                found.append((read(delivery.body), delivery))
            except UnreadableMessage as refused:
                dead.append((delivery, str(refused)))
        if dead:
            await publish_dead_letter(self._broker, consumer, dead)
            crash.point("jobs.take.after_dead_letter")
        return found


def _is_free(job: JobRow) -> bool:
    return bool(job.channels) and job.owner is None


def _as_offered(job: JobRow, offer: HandoffOffer) -> bool:
    return (job.owner, job.owner_epoch) == (offer.from_node, offer.owner_epoch)
