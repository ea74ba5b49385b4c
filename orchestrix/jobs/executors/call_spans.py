"""Call spans: what traces show of the calls to executors, by OpenTelemetry's conventions for HTTP clients.

The span of a call follows from the dispatch of the attempt, and what the executor does follows from the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.jobs import spans
from orchestrix.jobs.executors.port import CallResult, ExecutorCallPort
from orchestrix.telemetry import conventions as names
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import published_context, span_id_for
from orchestrix.telemetry.tracing import Span, SpanKind, SpanLink, Value

RUN: Final = "POST /run"
CANCEL: Final = "POST /cancel"
PROBE: Final = "GET /runs/{historyId}"
DENIED: Final = "404"
_PORTS: Final = {"http": 80, "https": 443}


def begin_run(job: JobRow, *, again: bool) -> Span:
    """The span of calling the job's executor for its attempt; it has the id of `trace_context.published_context`.

    One that calls `again`, whichever node has called first, links to that.
    """
    head, history_id = spans.context_of(job), str(job.history_id)
    repeats = again and head is not None and head.sampled
    links = [SpanLink(published_context(head, history_id), names.LINK_RETRY)] if repeats and head is not None else []
    return _begin(RUN, job, str(job.address), "/run", links, None if again else span_id_for(history_id))


def end_run(span: Span, result: CallResult) -> None:
    """The call has this result."""
    if span.recording and result.status is not None:
        span.set({names.HTTP_STATUS: result.status})
    if span.recording and result.answer is not CallAnswer.TAKEN:
        kind = result.answer.name.title().replace("_", "")
        span.fail(kind if result.status is None else str(result.status), result.detail)
    span.end()


async def cancel(
    client: ExecutorCallPort, job: JobRow, address: str, history_id: str, reason: str, *, again: bool = False
) -> None:
    """Asks an executor to stop an attempt, by a span of its own unless it was asked before."""
    span = tracing.ForwardedContext(spans.context_of(job)) if again else _begin(CANCEL, job, address, "/cancel")
    with tracing.active(span):
        await client.cancel(address, str(job.executor_group), job.id, history_id, reason)
    span.end()


def begin_probe(job: JobRow, address: str) -> Span:
    """The span of asking an executor for an attempt. It is ended only where that denies it: others are not kept."""
    return _begin(PROBE, job, address, f"/runs/{job.history_id}")


def end_denied(span: Span) -> None:
    """The executor does not have the attempt."""
    if span.recording:
        span.set({names.HTTP_STATUS: int(DENIED)})
        span.fail(DENIED)
    span.end()


def _begin(
    name: str, job: JobRow, address: str, path: str, links: Sequence[SpanLink] = (), span_id: int | None = None
) -> Span:
    span = tracing.begin(
        name, SpanKind.CLIENT, spans.context_of(job), links=links, since=spans.last_sign(job), span_id=span_id
    )
    if span.recording:
        span.set({**spans.attributes_of(job), **_http(name, address, path), names.WORKER_ID: address})
    return span


def _http(name: str, address: str, path: str) -> dict[str, Value]:
    method, template = name.split(" ")
    parts = urlsplit(address)
    found: dict[str, Value] = {names.HTTP_METHOD: method, names.URL_FULL: address + path, names.URL_TEMPLATE: template}
    found |= {names.SERVER_ADDRESS: str(parts.hostname), names.SERVER_PORT: parts.port or _PORTS[parts.scheme]}
    return found
