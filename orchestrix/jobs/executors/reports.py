"""Executor reports: takes what executors report about their attempts into the queues of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Outcome, Outgoing
from orchestrix.broker.published_spans import carrying, with_spans
from orchestrix.broker.topology import job_channels, logs_queue, status_queue
from orchestrix.domain.jobs import AttemptStatus, JobRow
from orchestrix.domain.registry.executor_reports import judge
from orchestrix.errors import Invalid, Unavailable
from orchestrix.jobs import spans
from orchestrix.jobs.executors.attempt_tokens import is_attempt_token
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.telemetry import conventions, messaging, tracing
from orchestrix.telemetry.trace_context import TraceContext
from orchestrix.telemetry.tracing import Span

STATUS: Final = "job.status"
LOG: Final = "job.log"
PUBLISH_TIMEOUT_S: Final = 5.0
"""Seconds until an executor is asked to send its report again later."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One message of an executor: the status or line that it is, and its body as it came."""

    event: AttemptStatus | JobLogLine
    body: bytes


class ExecutorReports:
    """Publishes reports into the job's two queues, where its owner reads them; an answer comes after the confirm.

    Its look at the attempt's row is the state guard: the executor begins only after its RUNNING was answered.
    """

    def __init__(self, database: Database, broker: Broker) -> None:
        self._database = database
        self._broker = broker
        self._key: bytes | None = None

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
        async with self._database.read() as connection:
            attempt = (await jobs.histories(connection, [history_id])).get(history_id)
            found = await jobs.of_ids(connection, [job_id])
        job = found[0] if found else None
        verdict = judge(job, attempt, job_id, worker_id)
        wanted = [
            one
            for one in reports
            if (verdict.open if isinstance(one.event, AttemptStatus) else verdict.takes_line(one.event.seq))
        ]
        if job is not None and wanted:
            await self._publish(job, wanted)
        return verdict.cancel

    async def _publish(self, job: JobRow, wanted: Sequence[Reported]) -> None:
        left = [_message(job, one) for one in wanted]
        left = await self._send(job, left)
        if not left:
            return
        async with self._database.read() as connection:
            now = await jobs.of_ids(connection, [job.id])
        if not now or not now[0].channels:
            return  # its queues were deleted with all that was in them: no node reads them any more
        await self._broker.declare(job_channels(job.id))
        if await self._send(job, left):
            raise Unavailable("the queues of the job are missing")

    async def _send(self, job: JobRow, messages: Sequence[Outgoing]) -> list[Outgoing]:
        """Those that no queue was there for, and all behind them: a line must not overtake another one."""
        made_by = tracing.current_context() or spans.context_of(job)
        begun = [_begin_publish(job, one, made_by) for one in messages]
        outgoing = [carrying(one, span) for one, span in zip(messages, begun, strict=True)]
        results = await with_spans(self._broker.publish(outgoing, PUBLISH_TIMEOUT_S), begun)
        first = next((n for n, one in enumerate(results) if one.outcome is not Outcome.CONFIRMED), len(results))
        if first == len(results):
            return []
        if results[first].outcome is Outcome.RETURNED:
            return list(messages[first:])
        if results[first].outcome is Outcome.REFUSED:
            raise Invalid(f"the broker refuses this report: {results[first].detail}")
        raise Unavailable(f"the broker has not confirmed the report: {results[first].detail}")


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
