"""Worker heartbeat listener: stores the heartbeats of workers, and stops those whose attempts are over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer, Delivery
from orchestrix.broker.topology import worker_heartbeat_queue
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import PENDING, JobAttempt, JobRow
from orchestrix.errors import ConflictError, RetryableError
from orchestrix.jobs import messages
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.messages import WorkerHeartbeat
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.lifecycle import Loop, Service, WakeSignal, backoff
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_heartbeats, jobs
from orchestrix.persistence.storable_text import cleaned
from orchestrix.saga.messages import UnreadableMessage

log = logging.getLogger("orchestrix.jobs")

HEARTBEAT_BATCH_LIMIT: Final = 200
RECENT_HEARTBEAT_S: Final = 15.0
"""Seconds for which a node that does not lead keeps the latest heartbeat of each worker."""
_REOPEN_AFTER: Final = timedelta(seconds=30)
HEARTBEATS_PER_TRANSACTION: Final = 50
"""Heartbeats of one time that are stored in one transaction."""


class DeferredHeartbeats:
    """Waits for the rows, beside the listener: a row that is locked for long keeps no other heartbeat waiting.

    What is stored is the time of an attempt's heartbeat, so that it may be written late, and twice.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deferred: dict[str, datetime] = {}
        self._wake = WakeSignal()
        self._failures = 0
        self._loop = Loop("deferred worker heartbeats", self._round)

    async def start(self) -> None:
        """Begins to wait for rows."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not stored is left to the next heartbeats."""
        await self._loop.stop()

    def defer(self, history_ids: Iterable[str], at: datetime) -> None:
        """These attempts had a heartbeat at that time, which is not stored yet."""
        self._deferred |= dict.fromkeys(history_ids, at)
        if self._deferred:
            self._wake.set()

    async def _round(self) -> None:
        if not self._deferred:
            await self._wake.wait(None)
            return
        at = next(iter(self._deferred.values()))
        chunk = dict.fromkeys(
            [name for name, its in self._deferred.items() if its == at][:HEARTBEATS_PER_TRANSACTION], at
        )
        if await self._is_stored(chunk):
            self._failures = 0
            return
        alone = [await self._is_stored({name: at}) for name in chunk] if len(chunk) > 1 else [False]
        self._failures = 0 if any(alone) else self._failures + 1
        if self._failures:
            await asyncio.sleep(backoff(self._failures))

    async def _is_stored(self, chunk: Mapping[str, datetime]) -> bool:
        """Whether all of it, of one time, is stored or obsolete; what is not goes behind all others."""
        (at,) = set(chunk.values())
        try:
            await self._database.run(lambda tx: job_heartbeats.record_heartbeats(tx, chunk, at), attempts=1)
        except RetryableError as error:
            log.debug("worker heartbeats deferred, their rows are locked: %s", error)
            self._deferred |= {name: self._deferred.pop(name) for name in chunk if name in self._deferred}
            return False
        self._deferred = {name: its for name, its in self._deferred.items() if chunk.get(name) != its}
        return True


class WorkerHeartbeatListener:
    """Stores which attempts have a worker, and stops those that are not to continue; but only while this node leads.

    So a cancel reaches a worker that was disconnected, and so does the news that its attempt is over. Lost heartbeats
    do no harm: the next ones come soon. Other nodes keep the latest of each worker for a short while: if they become
    leader, they list these workers at once. That a worker ends, or has left, every node stores: there may be no leader
    then, least of all where the worker is its own.
    """

    def __init__(self, database: Database, broker: Broker, node: str) -> None:
        self._database = database
        self._broker = broker
        self._node = node
        self._leader_context: LeaderContext | None = None
        self._deferred = DeferredHeartbeats(database)
        self._recent: dict[str, tuple[float, WorkerHeartbeat]] = {}
        self._consumer: Consumer | None = None
        self._loop = Loop("worker heartbeats", self._round)

    async def start(self) -> None:
        """Begins to listen."""
        self._consumer = await self._broker.consume(
            [worker_heartbeat_queue(self._node)], prefetch=HEARTBEAT_BATCH_LIMIT
        )
        await self._deferred.start()
        await self._loop.start()

    async def stop(self) -> None:
        """Stops listening."""
        await self._loop.stop()
        await self._deferred.stop()
        if self._consumer is not None:
            await self._consumer.close()

    def duty(self, leader_context: LeaderContext) -> Service:
        """The leader's duty of handling heartbeats."""
        return _HeartbeatDuty(self, leader_context)

    def begin_term(self, leader_context: LeaderContext) -> None:
        """Heartbeats are handled for that leader from now on."""
        self._leader_context = leader_context

    def end_term(self, leader_context: LeaderContext) -> None:
        """They are not handled for that leader any more; another term's may have begun before this one has ended."""
        if self._leader_context is leader_context:
            self._leader_context = None

    async def store_recent(self) -> None:
        """Lists the workers whose heartbeats this node received shortly before it became leader; it may be lost."""
        now, recent, self._recent = clock.monotonic(), self._recent, {}
        rows = [_row(one, now - at) for at, one in recent.values() if now - at < RECENT_HEARTBEAT_S]
        if not rows:
            return
        try:
            await self._database.run(lambda tx: nodes.record_worker_heartbeats(tx, rows), attempts=1)
        except RetryableError as error:
            log.debug("recent worker heartbeats lost: %s", error)

    async def _round(self) -> None:
        assert self._consumer is not None, "it has begun"
        deliveries = await self._consumer.receive(HEARTBEAT_BATCH_LIMIT, linger=0.05)
        try:
            await self._handle(_read_heartbeats(deliveries))
        except RetryableError as error:
            log.debug("worker heartbeats lost: %s", error)
        finally:
            await self._consumer.acknowledge(deliveries)

    async def _handle(self, heartbeats: Sequence[WorkerHeartbeat]) -> None:
        last = _latest_heartbeats(heartbeats)
        present = [one for one in heartbeats if not one.left]
        left = {worker: one.said_at for worker, one in last.items() if one.left}
        ending = [one for one in last.values() if not one.left and not one.serves]
        leader_context = self._leader_context
        if leader_context is not None and present:
            await _HeartbeatBatch(leader_context, self._deferred).handle(present)
        else:
            self._remember(last)
            if ending:
                await self._database.run(lambda tx: nodes.record_worker_heartbeats(tx, _rows(ending)))
        if left:
            await self._database.run(lambda tx: nodes.delete_workers(tx, left))

    def _remember(self, last: Mapping[str, WorkerHeartbeat]) -> None:
        now = clock.monotonic()
        self._recent |= {worker: (now, one) for worker, one in last.items()}
        self._recent = {
            worker: (at, one)
            for worker, (at, one) in self._recent.items()
            if not one.left and now - at < RECENT_HEARTBEAT_S
        }


@dataclass(frozen=True, slots=True)
class _HeartbeatDuty:
    listener: WorkerHeartbeatListener
    leader_context: LeaderContext

    async def start(self) -> None:
        self.listener.begin_term(self.leader_context)
        await self.listener.store_recent()

    async def stop(self) -> None:
        self.listener.end_term(self.leader_context)


class _HeartbeatBatch:
    """What one leader does with the attempts that workers report."""

    def __init__(self, leader_context: LeaderContext, deferred: DeferredHeartbeats) -> None:
        self._leader_context = leader_context
        self._deferred = deferred

    async def handle(self, heartbeats: Sequence[WorkerHeartbeat]) -> None:
        """Stores and answers them. While the database is unavailable it defers them: no heartbeat is repeated."""
        histories = {history for beat in heartbeats for history in beat.histories}
        at = self._leader_context.database.now()
        try:
            await self._leader_context.database.run(lambda tx: nodes.record_worker_heartbeats(tx, _rows(heartbeats)))
            if histories:
                await self._answer(histories)
        except RetryableError:
            self._deferred.defer(histories, at)
            raise

    async def _answer(self, histories: set[str]) -> None:
        async with self._leader_context.database.read() as connection:
            current = await jobs.by_histories(connection, histories)
            known = await jobs.histories(connection, histories - current.keys())
        await self._note([name for name, job in current.items() if job.live])
        stops = [stop for name, job in current.items() if (stop := _stop(name, job)) is not None]
        stops += await self._superseded(known)
        if stops:
            self._leader_context.stop(stops)
        await self._reopen([stop.job for stop in stops])

    async def _note(self, going: Sequence[str]) -> None:
        """Owners write workers' reports: rows they lock are waited for apart, and no heartbeat is dropped for them."""
        if not going:
            return
        at = self._leader_context.database.now()
        try:
            noted = await self._leader_context.database.run(
                lambda tx: job_heartbeats.record_heartbeats(tx, going, at, wait=False)
            )
        except RetryableError as error:
            log.debug("storing worker heartbeats later: %s", error)
            noted = set()
        self._deferred.defer(set(going) - noted, at)

    async def _superseded(self, known: dict[str, JobAttempt]) -> list[StopRequest]:
        """Attempts that were followed by others."""
        found: list[StopRequest] = []
        for name, attempt in known.items():
            async with self._leader_context.database.read() as connection:
                job = await jobs.get(connection, attempt.job_id)
            if job is not None:
                found.append(StopRequest(job, name, "this attempt has ended"))
        return found

    async def _reopen(self, jobs_to_reopen: Iterable[JobRow]) -> None:
        """A worker that publishes to deleted queues declares them again: they have to be deleted."""
        now = self._leader_context.database.now()
        ids = [
            job.id for job in jobs_to_reopen if job.finished_at is not None and now - job.finished_at > _REOPEN_AFTER
        ]
        if ids:
            try:
                await self._leader_context.database.run(lambda tx: self._write(tx, ids))
            except ConflictError as first:
                log.debug("concurrent update, retrying: %s", first)

    async def _write(self, tx: Transaction, ids: Sequence[str]) -> None:
        found = [job for job in (await jobs.lock(tx, ids)).values() if job.ended and not job.channels]
        now = self._leader_context.database.now()
        await jobs.store(tx, [(job.version, rules.reopened(job, now)) for job in found])


def _read_heartbeats(deliveries: Iterable[Delivery]) -> list[WorkerHeartbeat]:
    found: list[WorkerHeartbeat] = []
    for delivery in deliveries:
        try:
            found.append(messages.read_heartbeat(delivery.body))
        except UnreadableMessage as refused:
            log.debug("unreadable worker heartbeat: %s", refused)
    return found


def _rows(heartbeats: Iterable[WorkerHeartbeat]) -> list[WorkerHeartbeatRow]:
    return [_row(one) for one in heartbeats]


def _row(one: WorkerHeartbeat, ago_s: float = 0.0) -> WorkerHeartbeatRow:
    return WorkerHeartbeatRow(
        cleaned(one.worker_id), one.queues, one.jobs, one.said_at, one.lost_places, one.facts, ago_s
    )


def _latest_heartbeats(heartbeats: Iterable[WorkerHeartbeat]) -> dict[str, WorkerHeartbeat]:
    """The last heartbeat of each worker by its own clock, where it gives a time; a delayed older one is ignored."""
    last: dict[str, WorkerHeartbeat] = {}
    for one in heartbeats:
        before = last.get(worker := cleaned(one.worker_id))
        if before is None or before.said_at is None or one.said_at is None or one.said_at >= before.said_at:
            last[worker] = one
    return last


def _stop(name: str, job: JobRow) -> StopRequest | None:
    """The stop for a worker that reports this attempt of the job, which is its last one."""
    if job.ended or job.state == PENDING:
        return StopRequest(job, name, job.cancel_reason or "this attempt has ended")
    return StopRequest(job, name, job.cancel_reason) if job.cancel_reason is not None else None
