"""Job event listener: stores what workers report about jobs, many jobs in one commit."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final, Protocol

from orchestrix import clock, crash
from orchestrix.broker.dead_letter import Channel, publish_dead_letter
from orchestrix.broker.port import Broker, Delivery
from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import may_wake_leader
from orchestrix.domain.jobs import RUNNING, AttemptStatus, IgnoredStatus, JobAttempt, JobRow, JobTransition
from orchestrix.errors import RetryableError, SchemaMismatch
from orchestrix.jobs import log_lines, messages, spans, step_results
from orchestrix.jobs.log_lines import LogLimit
from orchestrix.lifecycle import Loop, WakeSignal, backoff
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_heartbeats, job_logs, jobs
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.telemetry import messaging
from orchestrix.telemetry.conventions import IGNORED, JOB_STATE
from orchestrix.telemetry.tracing import Span

log = logging.getLogger("orchestrix.jobs")

MESSAGES_PER_TRANSACTION: Final = 1000
"""Messages that are stored in one transaction."""
NO_LOG_LIMIT: Final = LogLimit(2**62, 2**62)
_DATABASE_ERRORS: Final = (RetryableError, SchemaMismatch)


class ChannelState(Enum):
    """The state of a job's channel after some of its events."""

    GOES_ON = "goes on"
    COMPLETE = "complete"
    """It has ended, and all log lines of its last attempt are stored."""
    LOST = "lost"
    """Another node owns it: nothing was written, nothing may be acknowledged."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The worker of this attempt is to stop."""

    job: JobRow
    history_id: str
    reason: str


class MessageSource(Channel, Protocol):
    """What brings messages about a job: a consumer of its queues, or an executor's report to this very node."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """They are stored."""


@dataclass(slots=True)
class ChannelBatch:
    """What came by the channel of one job. `epoch` is that under which this node owns it."""

    job_id: str
    epoch: int
    broker: Broker
    consumer: MessageSource
    deliveries: Sequence[Delivery]
    answer: asyncio.Future[ChannelState] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    events: list[AttemptStatus | JobLogLine] = field(default_factory=list)
    statuses: list[tuple[AttemptStatus, Delivery]] = field(default_factory=list)
    """The statuses among them, each with its message."""
    dead: list[tuple[Delivery, str]] = field(default_factory=list)
    again: set[tuple[str, int]] = field(default_factory=set)
    """The log lines, by attempt and number, that the broker redelivers."""


@dataclass(slots=True)
class BatchResult:
    """The results of one transaction."""

    verdicts: dict[str, ChannelState] = field(default_factory=dict)
    changed: dict[str, tuple[int, JobRow]] = field(default_factory=dict)
    attempts: dict[str, JobAttempt] = field(default_factory=dict)
    logs: dict[str, list[JobLogLine]] = field(default_factory=lambda: defaultdict(list))
    stops: list[StopRequest] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    spans: list[Span] = field(default_factory=list)
    broadcasts: Sequence[JobRow] = ()
    """Those of whose children some have ended."""


class JobEventListener:
    """Stores what has come, then acknowledges it. While the database is unavailable, it keeps what is unacknowledged.

    `stop` notifies workers that their attempt is over; `notify_leader` says that a job may begin, because its next
    attempt waits or another run of its schedule has ended; `on_change` is notified of every job that has changed or
    logged; `sent` says that the outbox has something to send. `limit` is how much of a job's log is kept.
    """

    def __init__(
        self,
        database: Database,
        node: str,
        *,
        stop: Callable[[Sequence[StopRequest]], None],
        notify_leader: Callable[[], None],
        on_change: Callable[[Iterable[str]], None] = lambda ids: None,
        sent: Callable[[], None] = lambda: None,
        limit: LogLimit = NO_LOG_LIMIT,
    ) -> None:
        self._database = database
        self._node = node
        self._limit = limit
        self._stop = stop
        self._notify_leader = notify_leader
        self._on_change = on_change
        self._sent = sent
        self._waiting: list[ChannelBatch] = []
        self._arrived = WakeSignal()
        self._loop = Loop("job events", self._round)
        self.counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Begins to store."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not acknowledged is redelivered, here or elsewhere."""
        await self._loop.stop()
        for batch in self._waiting:
            batch.answer.cancel()
        self._waiting.clear()

    async def handle(self, batch: ChannelBatch) -> ChannelState:
        """Stores and acknowledges what has come for one job, however long that takes."""
        crash.point("jobs.events.after_receive")
        self._read(batch)
        self._waiting.append(batch)
        self._arrived.set()
        return await batch.answer

    def _read(self, batch: ChannelBatch) -> None:
        now = self._database.now()
        for delivery in batch.deliveries:
            try:
                event = messages.read_event(delivery.queue, delivery.body, now)
                batch.events.append(event)
                if isinstance(event, AttemptStatus):
                    batch.statuses.append((event, delivery))
                elif delivery.redelivered:
                    batch.again.add((event.history_id, event.seq))
            except UnreadableMessage as refused:
                batch.dead.append((delivery, str(refused)))

    async def _round(self) -> None:
        if not self._waiting:
            await self._arrived.wait(None)
        batch = self._take()
        if batch:
            await self._commit(batch)

    def _take(self) -> list[ChannelBatch]:
        """What goes into the next transaction: at most one of each job, for its row is read once."""
        taken: dict[str, ChannelBatch] = {}
        left: list[ChannelBatch] = []
        size = 0
        for one in self._waiting:
            if one.answer.done():
                continue
            if one.job_id in taken or (taken and size + len(one.deliveries) > MESSAGES_PER_TRANSACTION):
                left.append(one)
            else:
                taken[one.job_id] = one
                size += len(one.deliveries)
        self._waiting = left
        return list(taken.values())

    async def _commit(self, batch: Sequence[ChannelBatch]) -> None:
        failures = 0
        while True:
            try:
                written = await self._database.run(partial(self._write, batch))
                break
            except _DATABASE_ERRORS as away:
                failures += 1
                if failures == 1:
                    log.warning("job event handling paused: %s", away)
                await asyncio.sleep(backoff(failures))
            except Exception as error:
                await self._commit_apart(batch, error)
                return
        crash.point("jobs.events.after_commit")
        self._announce(written)
        for channel_batch in batch:
            await self._settle(channel_batch, written.verdicts[channel_batch.job_id])

    async def _commit_apart(self, batch: Sequence[ChannelBatch], error: Exception) -> None:
        """A concurrent update, or one of them cannot be stored: jobs one by one, then messages one by one."""
        if len(batch) > 1:
            for channel_batch in batch:
                await self._commit([channel_batch])
        elif len(batch[0].deliveries) > 1:
            await self._commit_pieces(batch[0])
        else:
            (channel_batch,) = batch
            log.error("an event of job %s cannot be handled", channel_batch.job_id, exc_info=error)
            reason = f"cannot-be-handled: {type(error).__name__}"
            channel_batch.events, channel_batch.dead = [], [(one, reason) for one in channel_batch.deliveries]
            await self._settle(channel_batch, ChannelState.GOES_ON)

    async def _commit_pieces(self, whole: ChannelBatch) -> None:
        verdict = ChannelState.GOES_ON
        for delivery in whole.deliveries:
            piece = ChannelBatch(whole.job_id, whole.epoch, whole.broker, whole.consumer, [delivery])
            self._read(piece)
            await self._commit([piece])
            verdict = piece.answer.result()
            if verdict is ChannelState.LOST:
                break
        if not whole.answer.done():
            whole.answer.set_result(verdict)

    async def _settle(self, batch: ChannelBatch, verdict: ChannelState) -> None:
        if verdict is not ChannelState.LOST:
            if batch.dead:
                await publish_dead_letter(batch.broker, batch.consumer, batch.dead)
                crash.point("jobs.events.after_dead_letter")
            crash.point("jobs.events.before_ack")
            await batch.consumer.acknowledge(batch.deliveries)
        if not batch.answer.done():
            batch.answer.set_result(verdict)

    async def _write(self, batch: Sequence[ChannelBatch], tx: Transaction) -> BatchResult:
        ending = [one.job_id for one in batch if any(status.status != RUNNING for status, _ in one.statuses)]
        parents = await jobs.parents(tx, ending)
        rows = await jobs.lock(tx, [*(channel_batch.job_id for channel_batch in batch), *parents])
        written = BatchResult()
        mine = [
            channel_batch for channel_batch in batch if self._is_mine(rows.get(channel_batch.job_id), channel_batch)
        ]
        written.verdicts = {channel_batch.job_id: ChannelState.LOST for channel_batch in batch}
        for channel_batch in mine:
            self._apply_statuses(rows[channel_batch.job_id], channel_batch, written)
        messaging.end_with_commit(tx.then, written.spans)
        lines = [one for channel_batch in mine for one in channel_batch.events if isinstance(one, JobLogLine)]
        known = await jobs.histories(tx, [line.history_id for line in lines])
        self._apply_log_lines(lines, {**known, **written.attempts}, written)
        await self._drop_copies(tx, mine, written)
        await job_heartbeats.touch(
            tx,
            [job for channel_batch in mine if (job := self._note(rows[channel_batch.job_id], channel_batch, written))],
        )
        stored = await step_results.store_with_results(tx, list(written.changed.values()), written.attempts.values())
        written.broadcasts = stored.broadcasts
        if stored.results:
            tx.then(self._sent)
        await job_logs.insert(tx, [line for found in written.logs.values() for line in found])
        now = [written.changed.get(channel_batch.job_id, (0, rows[channel_batch.job_id]))[1] for channel_batch in mine]
        complete = await job_logs.complete(tx, now)
        written.verdicts |= {
            job.id: ChannelState.COMPLETE if job.id in complete else ChannelState.GOES_ON for job in now
        }
        crash.point("jobs.events.before_commit")
        return written

    def _is_mine(self, job: JobRow | None, batch: ChannelBatch) -> bool:
        return job is not None and (job.owner, job.owner_epoch) == (self._node, batch.epoch)

    def _apply_statuses(self, job: JobRow, batch: ChannelBatch, written: BatchResult) -> None:
        now, before = self._database.now(), job.version
        for status, delivery in sorted(batch.statuses, key=lambda one: one[0].seq):
            span = spans.begin_status(job, delivery, status)
            written.spans.append(span)
            match rules.reported(job, status, now, clock.uniform(0, 1)):
                case JobTransition(moved, attempt, stop):
                    job = spans.after_end(job, moved, span.context)
                    if span.recording:
                        span.set({JOB_STATE: job.state})
                    if attempt is not None:
                        written.attempts[attempt.history_id] = attempt
                    self._note_stop(job, stop, "another worker had already started it", written)
                case IgnoredStatus(reason, stop):
                    written.ignored[reason] += 1
                    if span.recording:
                        span.set({IGNORED: reason})
                    self._note_stop(job, stop, "this attempt has ended", written)
        if job.version != before:
            written.changed[job.id] = before, job

    @staticmethod
    def _note_stop(job: JobRow, history_id: str | None, reason: str, written: BatchResult) -> None:
        if history_id is not None:
            written.stops.append(StopRequest(job, history_id, job.cancel_reason or reason))

    @staticmethod
    def _apply_log_lines(lines: Sequence[JobLogLine], known: Mapping[str, JobAttempt], written: BatchResult) -> None:
        for line in lines:
            attempt = known.get(line.history_id)
            if (
                attempt is not None
                and attempt.job_id == line.job_id
                and attempt.owns_log_line(line.seq, line.worker_id)
            ):
                written.logs[line.job_id].append(replace(line, attempt=attempt.attempt))
            else:
                written.ignored["another-attempt"] += 1

    @staticmethod
    async def _drop_copies(tx: Transaction, mine: Sequence[ChannelBatch], written: BatchResult) -> None:
        """Redelivered lines count once: another owner may have stored them, and not acknowledged them."""
        there = await job_logs.stored_lines(tx, [line for batch in mine for line in batch.again])
        for job_id, found in written.logs.items():
            unique = {(line.history_id, line.seq): line for line in found}
            written.logs[job_id] = [line for key, line in unique.items() if key not in there]

    def _note(self, row: JobRow, batch: ChannelBatch, written: BatchResult) -> JobRow | None:
        """Which of a job's lines are kept, and that its worker lives; the job if it is to be written for that alone."""
        before, job = written.changed.get(row.id, (row.version, row))
        now = self._database.now()
        alive = log_lines.alive(job, batch.events, now)
        noted, written.logs[row.id] = log_lines.kept(alive, written.logs[row.id], self._limit, now)
        if noted.version != before:
            written.changed[row.id] = before, noted
            return None
        return noted if noted != job else None

    def _announce(self, written: BatchResult) -> None:
        self.counts.update(written.ignored)
        if written.stops:
            self._stop(written.stops)
        if any(may_wake_leader(job) for job in (*(job for _, job in written.changed.values()), *written.broadcasts)):
            self._notify_leader()
        self._on_change(job.id for job in written.broadcasts)
        self._on_change({*written.changed, *(job_id for job_id, found in written.logs.items() if found)})
