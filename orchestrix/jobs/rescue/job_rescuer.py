"""Job rescuer: the leader's periodic check for time-outs, silent workers and jobs that the broker has lost."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState
from orchestrix.broker.probe import accepts_messages
from orchestrix.domain import job_diagnosis
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import BROKER_LOST, DISPATCHED, WORKER_SILENT, AttemptEnding, JobRow
from orchestrix.jobs import spans, step_results
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.rescue.leader_context import RESCUE_BATCH_LIMIT, LeaderContext
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import broadcasts, job_predicates, job_queues, jobs
from orchestrix.persistence.jobs.job_predicates import JobsToRescue
from orchestrix.persistence.jobs.job_queues import NO_QUEUE
from orchestrix.quantities import counted

Find = Callable[[Transaction, int], Awaitable[list[JobRow]]]
Judge = Callable[[Transaction, Sequence[JobRow]], Awaitable[list[AttemptEnding]]]
log = logging.getLogger("orchestrix.jobs")


class JobRescuer:
    """Ends attempts that timed out, whose worker is silent, or that the broker has lost.

    A worker's silence counts only while its heartbeats could be received. `_listening_since` is when this leader last
    began to listen: by its gain of leadership, or by the end of an outage, of a broker alarm or of a stall of its own
    process; what was dispatched before is spared for a while. A job whose owner has sent no heartbeat for `listening_s`
    seconds is not ended either, because its worker's messages may be unread. A dispatched job that no worker has
    started gets its full timeout again after an outage. One select finds whether there is anything to do; the
    transactions that do it select again what is to be done.
    """

    def __init__(self, leader_context: LeaderContext, broker: Broker, *, silent: float, listening_s: float) -> None:
        self._leader_context = leader_context
        self._broker = broker
        self._silent = silent
        self._listening_s = listening_s
        self._listening_since: datetime | None = None
        self._listening_on = 0
        self._back_since: datetime | None = None
        self._was_disconnected = False
        self._checked_at = self._began = 0.0
        self._checked_broker_at = -math.inf

    async def run_once(self) -> float:
        """Checks once; seconds until the next check."""
        asked = clock.monotonic()
        if not await self._heartbeats_can_arrive():
            self._was_disconnected = True
            return 1.0
        self._began = clock.monotonic()
        self._checked_at += min(self._began - asked, self._silent / 3)  # a slow link is no stall of this process
        self._restart_listening()
        due = await self._jobs_to_rescue()
        if due.dispatched_before_reset:
            await self._end(jobs.dispatched_before_reset, _always(BROKER_LOST), "broker data lost")
        if due.timed_out:
            await self._end(self._find_timed_out, self._judge_timed_out, "timed out")
        if due.silent:
            await self._end(self._find_silent, _always(WORKER_SILENT), "worker silent")
        self._checked_at = self._began  # the process may have stalled since
        return self._until_next(due.left)

    async def _heartbeats_can_arrive(self) -> bool:
        """Whether workers can send heartbeats: proved again after a second."""
        if clock.monotonic() - self._checked_broker_at > 1.0:
            if not await accepts_messages(self._broker):
                return False
            self._checked_broker_at = clock.monotonic()
        return self._broker.state is LinkState.UP and self._broker.blocked is None

    async def _jobs_to_rescue(self) -> JobsToRescue:
        async with self._leader_context.database.read() as connection:
            spares = self._is_too_early(connection)
            limit, since = (None, self._listening_since) if spares else (self._silent, None)
            return await job_predicates.jobs_to_rescue(connection, limit, self._listening_s, since)

    def _restart_listening(self) -> None:
        """Restarts `_listening_since`. Where no check has succeeded for long, no heartbeat can have been stored either:
        the database was unavailable, or this process stalled.
        """
        now, by = self._leader_context.database.now(), self._broker.generation
        if self._was_disconnected or self._listening_on not in (0, by):
            self._back_since = now
        missed = clock.monotonic() - self._checked_at > self._silent / 3
        if self._listening_since is None or self._listening_on != by or missed or self._was_disconnected:
            self._listening_since, self._listening_on = now, by
        self._was_disconnected = False

    def _stalled(self) -> bool:
        """Whether this process stalled in the middle of the check; then it listens from now on."""
        if clock.monotonic() - self._began <= self._silent / 3:
            return False
        self._began, self._listening_since = clock.monotonic(), self._leader_context.database.now()
        return True

    def _is_too_early(self, connection: Connection) -> bool:
        now = connection.now()
        if self._listening_since is not None and self._listening_since > now:  # the clock was set back
            self._listening_since = now
        since = self._listening_since
        return since is None or now - since < timedelta(seconds=self._silent)

    async def _find_timed_out(self, tx: Transaction, limit: int) -> list[JobRow]:
        found = await jobs.timed_out(tx, limit, self._listening_s)
        self._stalled()
        late = [job for job in found if not (self._is_too_early(tx) and self._is_older(job))]
        extended = [self._extend(job, tx.now()) for job in late]
        changed = [(job.version, later) for job, later in zip(late, extended, strict=True) if later is not None]
        await jobs.store(tx, changed)
        if changed:  # the leader context checks its term only where something ends
            await leases.check_fence(tx, self._leader_context.fence)
        return [job for job, later in zip(late, extended, strict=True) if later is None]

    def _extend(self, job: JobRow, now: datetime) -> JobRow | None:
        """The job with more time, where an outage since its dispatch gives it that."""
        until = self._until(job)
        if until is None or until <= now:
            return None
        return replace(job, version=job.version + 1, updated_at=now, wake_at=until)

    def _until(self, job: JobRow) -> datetime | None:
        """The deadline of a job that was dispatched before an outage and that no worker has begun."""
        back, sent = self._back_since, job.dispatched_at
        if job.state != DISPATCHED or job.timeout_ms is None or back is None or sent is None or sent >= back:
            return None
        return back + timedelta(milliseconds=job.timeout_ms)

    def _is_older(self, job: JobRow) -> bool:
        since = self._listening_since
        return since is None or job.dispatched_at is None or job.dispatched_at < since

    async def _find_silent(self, tx: Transaction, limit: int) -> list[JobRow]:
        found = [] if self._is_too_early(tx) else await jobs.silent(tx, self._silent, limit, self._listening_s)
        return [] if self._stalled() else found

    def _until_next(self, due: float | None) -> float:
        most = min(self._silent / 6, 5.0)
        if due is None:
            return most
        # What is late and was not ended is spared for a while, of which no check changes anything.
        return min(max(due, 0.1) if due > 0 else 0.3, most)

    async def _judge_timed_out(self, tx: Transaction, found: Sequence[JobRow]) -> list[AttemptEnding]:
        workers = await job_queues.queue_workers(tx, [job.queue or NO_QUEUE for job in found], self._silent)
        return [job_diagnosis.timeout_ending(job, workers[job.queue or NO_QUEUE]) for job in found]

    async def _end(self, find: Find, judge: Judge, reason: str) -> None:
        while stops := await self._leader_context.write(partial(self._write, find, judge, reason)):
            log.warning("%s ended (%s)", counted(len(stops), "job attempt"), reason)
            self._leader_context.stop(stops)
            self._leader_context.notify_leader()
            if len(stops) < RESCUE_BATCH_LIMIT:
                return

    async def _write(self, find: Find, judge: Judge, reason: str, tx: Transaction) -> list[StopRequest]:
        found = await broadcasts.with_free_parents(tx, await find(tx, RESCUE_BATCH_LIMIT))
        now, endings = self._leader_context.database.now(), await judge(tx, found)
        moved = [rules.ended(job, one, now, clock.uniform(0, 1)) for job, one in zip(found, endings, strict=True)]
        moved = spans.end_attempts(tx, found, moved)
        changed = [(before.version, one.job) for before, one in zip(found, moved, strict=True)]
        tried = [one.attempt for one in moved if one.attempt is not None]
        if (await step_results.store_with_results(tx, changed, tried)).results:
            tx.then(self._leader_context.relay.notify)
        return [StopRequest(one.job, one.stop, reason) for one in moved if one.stop is not None]


def _always(ending: AttemptEnding) -> Judge:
    async def judge(tx: Transaction, found: Sequence[JobRow]) -> list[AttemptEnding]:
        return [ending] * len(found)

    return judge
