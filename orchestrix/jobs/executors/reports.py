"""Executor reports: takes what executors report about their attempts into the queues of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, LinkState, Outcome, Outgoing
from orchestrix.broker.published_spans import carrying, with_spans
from orchestrix.broker.topology import job_channels, logs_queue, status_queue
from orchestrix.domain.jobs import DISPATCHED, AttemptStatus, JobRow
from orchestrix.domain.registry.executor_reports import ReportVerdict, judge
from orchestrix.errors import BrokerUnavailable, Invalid, Unavailable
from orchestrix.jobs import spans
from orchestrix.jobs.executors.attempt_lookup import AttemptLookup
from orchestrix.jobs.executors.attempt_tokens import is_attempt_token
from orchestrix.jobs.executors.own_reports import OwnReports
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.telemetry import conventions, messaging, tracing
from orchestrix.telemetry.trace_context import TraceContext
from orchestrix.telemetry.tracing import Span

STATUS: Final = "job.status"
LOG: Final = "job.log"
PUBLISH_TIMEOUT_S: Final = 5.0
"""Seconds until an executor is asked to send its report again later."""
NEW_QUEUE_PAUSES_S: Final = (0.05, 0.1, 0.2)
"""Seconds after each try to publish into queues that were just declared, but the last."""
NEW_QUEUE_TIMEOUT_S: Final = 1.0
"""Seconds after which it is not tried again at once."""
NOTICED_LIMIT: Final = 2000
NotifyOwner = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reported:
    """One message of an executor: the status or line that it is, and its body as it came."""

    event: AttemptStatus | JobLogLine
    body: bytes


class ExecutorReports:
    """Takes reports. An answer comes after the commit where this node owns the job, and has stored them by `own`.

    Else they are published into the job's two queues, where its owner reads them, and are answered after the confirm.
    The first of these declares the queues, and then `notify_owner` is called, with the owner's and the job's id.

    Its look at the attempt's row is the state guard: the executor begins only after its RUNNING was answered.
    """

    def __init__(
        self, database: Database, broker: Broker, notify_owner: NotifyOwner, own: OwnReports | None = None
    ) -> None:
        self._database = database
        self._attempts = AttemptLookup(database)
        self._broker = broker
        self._notify_owner = notify_owner
        self._own = own or OwnReports()
        self._key: bytes | None = None
        self._noticed: dict[str, str] = {}
        """The owners that were notified last, by jobs."""

    async def admits(self, history_id: str, token: str) -> bool:
        """Whether `token` is that of the attempt. Raises `Unavailable`."""
        if self._key is None:  # it stays the same while a process runs
            self._key = await installation.report_key(self._database)
        return is_attempt_token(self._key, history_id, token)

    async def take(self, job_id: str, history_id: str, worker_id: str, reports: Sequence[Reported]) -> str | None:
        """Why the executor must not begin, or must stop; None while it is to continue.

        Raises `Unavailable` where the broker or the database is away: nothing may have been published, send all of it
        again. Raises `Invalid` for what the broker refuses.
        """
        job, verdict = await self._judge(job_id, history_id, worker_id)
        wanted = _wanted(verdict, reports)
        if job is None or not wanted:
            return verdict.cancel
        if (span := tracing.current_span()) is not None and span.recording:
            span.set({**spans.attributes_of(job), conventions.WORKER_ID: worker_id})
        if self._noticed.get(job.id) == job.owner or not await self._store(job, wanted):
            verdict = await self._publish(job, verdict, worker_id, wanted)
        crash.point("jobs.report.before_answer")
        return verdict.cancel

    async def _store(self, job: JobRow, wanted: Sequence[Reported]) -> bool:
        """Whether this node owns the job, and has stored the reports."""
        if self._broker.state is not LinkState.UP:  # what the job sends next could not leave
            raise BrokerUnavailable("not connected")
        return await self._own.store(job, [_message(job, one) for one in wanted])

    async def _publish(
        self, job: JobRow, verdict: ReportVerdict, worker_id: str, wanted: Sequence[Reported]
    ) -> ReportVerdict:
        """Sends the reports to the owner, by the queues of the job; what is to be done by the last look at it."""
        first = job.state == DISPATCHED and self._noticed.get(job.id) != job.owner
        left, now = list(wanted), job
        if not (first and job.attempt == 1):  # else it has no queues yet
            left = await self._send(job, left)
            if left:
                found, verdict = await self._judge(job.id, wanted[0].event.history_id, worker_id)
                left, now = _wanted(verdict, left), found or replace(job, channels=0)
        if left and now.channels:  # else its queues were deleted: no node reads them any more
            await self._declare_and_send(now, left)
            first = True
        if first and now.owner is not None:
            crash.point("jobs.report.before_notice")
            await self._notify_owner(now.owner, now.id)
            self._remember(now.id, now.owner)
        return verdict

    def _remember(self, job_id: str, owner: str) -> None:
        """Its queues are there, and that owner knows: until it has read them, further reports cost no more."""
        self._noticed.pop(job_id, None)
        self._noticed[job_id] = owner
        if len(self._noticed) > NOTICED_LIMIT:
            del self._noticed[next(iter(self._noticed))]

    async def _judge(self, job_id: str, history_id: str, worker_id: str) -> tuple[JobRow | None, ReportVerdict]:
        job, attempt = await self._attempts.get(job_id, history_id)
        return job, judge(job, attempt, job_id, worker_id)

    async def _declare_and_send(self, job: JobRow, left: list[Reported]) -> None:
        await self._broker.declare(job_channels(job.id))
        crash.point("jobs.report.after_declare")
        until = clock.monotonic() + NEW_QUEUE_TIMEOUT_S
        for pause_s in NEW_QUEUE_PAUSES_S:  # a queue takes nothing before its replicas have agreed who leads them
            try:
                left = await self._send(job, left)
            except Unavailable:
                if clock.monotonic() > until:
                    raise
            if not left:
                return
            await asyncio.sleep(pause_s)
        if await self._send(job, left):
            raise BrokerUnavailable("the queues of the job are missing")

    async def _send(self, job: JobRow, reports: Sequence[Reported]) -> list[Reported]:
        """Those that no queue was there for, and all behind them: a line must not overtake another one."""
        messages = [_message(job, one) for one in reports]
        made_by = tracing.current_context() or spans.context_of(job)
        begun = [_begin_publish(job, one, made_by) for one in messages]
        outgoing = [carrying(one, span) for one, span in zip(messages, begun, strict=True)]
        results = await with_spans(self._broker.publish(outgoing, PUBLISH_TIMEOUT_S), begun)
        first = next((n for n, one in enumerate(results) if one.outcome is not Outcome.CONFIRMED), len(results))
        if first == len(results):
            return []
        if results[first].outcome is Outcome.RETURNED:
            return list(reports[first:])
        if results[first].outcome is Outcome.REFUSED:
            raise Invalid(f"the broker refuses this report: {results[first].detail}")
        raise BrokerUnavailable(f"the broker has not confirmed the report: {results[first].detail}")


def _wanted(verdict: ReportVerdict, reports: Sequence[Reported]) -> list[Reported]:
    """Those of the reports that count."""
    return [
        one
        for one in reports
        if (verdict.open if isinstance(one.event, AttemptStatus) else verdict.takes_line(one.event.seq))
    ]


def _begin_publish(job: JobRow, message: Outgoing, made_by: TraceContext | None) -> Span:
    """The span of a status; lines have none, as those of workers."""
    if message.type != STATUS or made_by is None or not made_by.sampled or not tracing.enabled():
        return tracing.NO_SPAN
    return messaging.begin_publish(
        "",
        message.routing_key,
        message.message_id,
        made_by,
        correlation_id=message.correlation_id,
        template=conventions.JOB_STATUS_TEMPLATE,
        attributes=spans.attributes_of(job),
    )


def _message(job: JobRow, one: Reported) -> Outgoing:
    is_status, now = isinstance(one.event, AttemptStatus), clock.now()
    queue, kind = (status_queue(job.id), STATUS) if is_status else (logs_queue(job.id), LOG)
    traceparent, tracestate = tracing.current_context() or spans.trace_of(job)
    named = {"traceparent": traceparent, "tracestate": tracestate}
    headers = {name: value for name, value in named.items() if value is not None}
    return Outgoing("", queue, one.body, clock.uuid7(), job.correlation_id, kind, now, headers)
