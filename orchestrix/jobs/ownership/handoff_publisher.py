"""Job hand-off publisher: offers jobs to other nodes, all at once, and learns who has taken them.

JobHandoffPublisher and the listener for its acknowledgements.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, Consumer, Delivery
from orchestrix.broker.topology import handoff_ack
from orchestrix.domain import jobs as rules
from orchestrix.domain.handoff import (
    REBALANCE,
    SHUTDOWN,
    HandoffLimits,
    HandoffProgress,
    HandoffStep,
    next_check,
    next_step,
)
from orchestrix.domain.jobs import HANDING_OFF, ORPHAN_PENDING, JobRow
from orchestrix.errors import RetryableError
from orchestrix.jobs import messages, outbox_rows
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.quantities import counted
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.telemetry.metrics.catalogue import ACKNOWLEDGED, HANDOFFS, RETRIED
from orchestrix.telemetry.metrics.instruments import counter

log = logging.getLogger("orchestrix.jobs")
_handoffs = counter(HANDOFFS)

OFFERS_PER_BATCH: Final = 200
"""Jobs that are marked, or offered, together."""
OWNER_POLL_INTERVAL_S: Final = 1.0
"""Seconds between two polls for the owners of the jobs: an answer can get lost."""


@dataclass(slots=True)
class _OfferedJob:
    """A job on offer, under the epoch that it had here."""

    epoch: int
    offer: HandoffProgress = field(default_factory=HandoffProgress)


class JobHandoffAckListener:
    """Receives which jobs other nodes have taken from this one."""

    def __init__(self, broker: Broker, node: str) -> None:
        self._broker = broker
        self._node = node
        self._consumer: Consumer | None = None
        self._loop = Loop("hand-off acknowledgements", self._round)
        self.taken: dict[str, int] = {}
        self.arrived = WakeSignal()

    async def start(self) -> None:
        """Begins to listen."""
        self._consumer = await self._broker.consume([handoff_ack(self._node)], prefetch=OFFERS_PER_BATCH)
        await self._loop.start()

    async def stop(self) -> None:
        """Stops listening."""
        await self._loop.stop()
        if self._consumer is not None:
            await self._consumer.close()

    async def _round(self) -> None:
        assert self._consumer is not None, "it has begun"
        deliveries = await self._consumer.receive(OFFERS_PER_BATCH)
        for delivery in deliveries:
            self._on_ack(delivery)
            crash.point("jobs.handoff.after_answer")
        await self._consumer.acknowledge(deliveries)
        self.arrived.set()

    def _on_ack(self, delivery: Delivery) -> None:
        try:
            job_id, epoch = messages.read_taken(delivery.body)
        except UnreadableMessage as refused:
            log.warning("unreadable hand-off acknowledgement: %s", refused)
        else:
            self.taken[job_id] = epoch


class JobHandoffPublisher:
    """Hands jobs off: marks them, offers them to all nodes, and leaves each as soon as another node owns it.

    Until then this node still consumes it, so that nothing waits. What no node takes is marked for the leader, or
    kept if it was only to be rebalanced.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        owned_jobs: OwnedJobs,
        acks: JobHandoffAckListener,
        node: str,
        limits: HandoffLimits,
    ) -> None:
        self._database = database
        self._broker = broker
        self._owned_jobs = owned_jobs
        self._acks = acks
        self._node = node
        self._limits = limits

    async def hand_off(self, reason: str, limit: int | None = None) -> int:
        """Hands off what this node owns, at most so many; how many of them another node has taken, or have ended.

        Raises `Unavailable` if they cannot be marked: then none was offered.
        """
        began = clock.monotonic()
        given = await self._begun(reason, limit)
        taken = 0
        while given:
            now = clock.monotonic() - began
            steps = {job_id: next_step(one.offer, now, self._limits) for job_id, one in given.items()}
            taken += await self._leave(given, _jobs_at(steps, HandoffStep.REMOVED))
            await self._publish(given, _jobs_at(steps, HandoffStep.PUBLISH), reason)
            if not await self._give_up(given, _jobs_at(steps, HandoffStep.ORPHAN_PENDING), reason):
                return taken
            if _jobs_at(steps, HandoffStep.FORCE_SHUTDOWN):
                log.warning("no other node took over %s in time", counted(len(given), "job"))
                return taken
            if given:
                await self._wait(given, began)
        return taken

    async def _begun(self, reason: str, limit: int | None) -> dict[str, _OfferedJob]:
        """Marks the jobs; those that have ended are cleared away by this node, unless it stops itself."""
        async with self._database.read() as connection:
            owned = await jobs.owned_by(connection, self._node)
        wanted = [one for one in owned if reason == SHUTDOWN or not one.ended][:limit]
        given = {one.id: _OfferedJob(one.owner_epoch) for one in wanted}
        await self._mark(given, partial(rules.offered, reason=reason, ownership=HANDING_OFF))
        return given

    async def _mark(
        self, given: dict[str, _OfferedJob], change: Callable[..., JobRow], ids: Sequence[str] | None = None
    ) -> None:
        chosen = sorted(given if ids is None else ids)
        for place in range(0, len(chosen), OFFERS_PER_BATCH):
            part = chosen[place : place + OFFERS_PER_BATCH]
            await self._database.run(partial(self._write_marks, {id: given[id].epoch for id in part}, change))
            crash.point("jobs.handoff.after_mark")

    async def _write_marks(self, epochs: dict[str, int], change: Callable[..., JobRow], tx: Transaction) -> None:
        rows = await jobs.lock(tx, epochs)
        now = self._database.now()
        mine = [job for job in rows.values() if (job.owner, job.owner_epoch) == (self._node, epochs[job.id])]
        await jobs.store(tx, [(job.version, change(job, now=now)) for job in mine])
        crash.point("jobs.handoff.before_mark")

    async def _leave(self, given: dict[str, _OfferedJob], ids: Sequence[str]) -> int:
        await self._owned_jobs.leave(ids)
        for job_id in ids:
            crash.point("jobs.handoff.after_close")
            del given[job_id]
            self._acks.taken.pop(job_id, None)
        _handoffs.at(ACKNOWLEDGED).add(len(ids))
        return len(ids)

    async def _publish(self, given: dict[str, _OfferedJob], ids: Sequence[str], reason: str) -> None:
        for place in range(0, len(ids), OFFERS_PER_BATCH):
            part = ids[place : place + OFFERS_PER_BATCH]
            offers = [outbox_rows.handoff(job_id, self._node, given[job_id].epoch, reason) for job_id in part]
            _handoffs.at(RETRIED).add(sum(given[job_id].offer.offers > 0 for job_id in part))
            for job_id in part:
                given[job_id].offer = replace(given[job_id].offer, offers=given[job_id].offer.offers + 1)
            publishing = self._broker.publish(offers, timeout=self._limits.ack / 2)
            await crash.within("jobs.handoff.after_publish", publishing)
            crash.point("jobs.handoff.after_confirm")

    async def _give_up(self, given: dict[str, _OfferedJob], ids: Sequence[str], reason: str) -> bool:
        """Whether another node may still take them."""
        if not ids:
            return True
        try:
            if reason == REBALANCE:
                await self._mark(given, rules.kept, ids)
                return False
            await self._mark(given, partial(rules.offered, reason=reason, ownership=ORPHAN_PENDING), ids)
        except RetryableError as error:
            log.warning("cannot mark jobs as handed off: %s", error)
        for job_id in ids:
            given[job_id].offer = replace(given[job_id].offer, marked=True)
        return True

    async def _wait(self, given: dict[str, _OfferedJob], began: float) -> None:
        """Until there is something to do, or another node has answered."""
        soonest = min(next_check(one.offer, self._limits) for one in given.values())
        left = began + soonest - clock.monotonic()
        if not await self._acks.arrived.wait(min(max(left, 0.01), OWNER_POLL_INTERVAL_S)):
            await self._check_owners(given)
        for job_id, one in given.items():
            if self._acks.taken.get(job_id, 0) > one.epoch:
                one.offer = replace(one.offer, acked=True)

    async def _check_owners(self, given: dict[str, _OfferedJob]) -> None:
        """What this node no longer owns has been taken, or has ended and is cleared away."""
        try:
            async with self._database.read() as connection:
                owned = {one.id: one.owner_epoch for one in await jobs.owned_by(connection, self._node)}
        except RetryableError as error:
            log.debug("cannot read job owners: %s", error)
            return
        for job_id, one in given.items():
            if owned.get(job_id) != one.epoch:
                one.offer = replace(one.offer, acked=True)


def _jobs_at(steps: dict[str, HandoffStep], step: HandoffStep) -> list[str]:
    return [job_id for job_id, one in steps.items() if one is step]
