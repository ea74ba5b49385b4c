"""Job spans: what traces show of a job on its nodes, and which span its next part follows from (`trace_head`).

While an attempt is open, or waits to be tried again, `trace_head` is in the trace in which the attempt was dispatched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from orchestrix.broker.port import Delivery
from orchestrix.domain.job_retry import is_retried
from orchestrix.domain.jobs import AttemptStatus, JobRow, JobTransition
from orchestrix.persistence.engine import Transaction
from orchestrix.saga.trace_context import next_part
from orchestrix.telemetry import conventions as names
from orchestrix.telemetry import messaging, tracing
from orchestrix.telemetry.trace_context import TraceContext, context_in, published_context, trace_context
from orchestrix.telemetry.tracing import NO_SPAN, Span, SpanKind, SpanLink, Value

DISPATCH: Final = "dispatch job"
END_ATTEMPT: Final = "end job attempt"
OFFER: Final = "offer job"
HAND_OFF: Final = "hand off job"
_UNDO: Final = ":undo"


def trace_of(job: JobRow) -> tuple[str | None, str | None]:
    """`traceparent` and `tracestate` of what it sends."""
    return next_part(job.traceparent, job.tracestate, job.trace_head)


def context_of(job: JobRow) -> TraceContext | None:
    """The span from which the job's next part follows."""
    return trace_context(*trace_of(job))


def attributes_of(job: JobRow) -> dict[str, Value]:
    """What every span of a job has; those of its saga too, where it is a step of one."""
    found: dict[str, Value] = {
        names.CORRELATION_ID: job.correlation_id,
        names.JOB_ID: job.id,
        names.JOB_ATTEMPT: job.attempt,
        names.JOB_HANDLER: job.handler,
    }
    if job.queue is not None:
        found[names.JOB_QUEUE] = job.queue
    if job.executor_group is not None:
        found[names.JOB_GROUP] = job.executor_group
    if job.schedule_id is not None:
        found[names.SCHEDULE_ID] = job.schedule_id
    if job.saga is not None and job.instance_id is not None:
        found |= messaging.saga_attributes(job.saga, job.instance_id, job.correlation_id)
        found[names.SAGA_STEP] = str(job.step).removesuffix(_UNDO)
        found[names.SAGA_COMPENSATING] = str(job.step).endswith(_UNDO)
    return found


def dispatch(tx: Transaction, due: Sequence[JobRow], moved: Sequence[JobTransition]) -> list[JobTransition]:
    """The attempts that are dispatched, each following from a span of its own."""
    if not tracing.enabled():
        return list(moved)
    made = [_begin_dispatch(before, one.job) for before, one in zip(due, moved, strict=True)]
    messaging.end_with_commit(tx.then, made)
    return [replace(one, job=_following(one.job, span.context)) for one, span in zip(moved, made, strict=True)]


def redispatch(
    tx: Transaction, found: Sequence[JobRow], sent: Sequence[JobRow]
) -> tuple[list[JobRow], dict[str, JobRow]]:
    """The jobs whose attempts are dispatched again; and by their ids, the same as the new dispatch is to follow.

    In its own trace an attempt still follows from its first dispatch: then `published_again` holds.
    """
    if not tracing.enabled():
        return list(sent), {job.id: job for job in sent}
    made = [_begin_redispatch(before, job) for before, job in zip(found, sent, strict=True)]
    messaging.end_with_commit(tx.then, made)
    pairs = list(zip(sent, made, strict=True))
    follow = {job.id: _following(job, span.context) for job, span in pairs}
    return [job if _continues(job, span.context) else follow[job.id] for job, span in pairs], follow


def published_again(before: JobRow, follows: JobRow) -> bool:
    """Whether a dispatch of the same id has been published in the trace in which this one will be."""
    context = context_of(follows)
    return tracing.enabled() and context is not None and _continues(before, context)


def end_attempts(tx: Transaction, found: Sequence[JobRow], moved: Sequence[JobTransition]) -> list[JobTransition]:
    """The jobs whose attempts this node has found to be over, each following from a span of its own.

    A trace that has been silent for long is not continued: the span is the root of another one.
    """
    if not tracing.enabled():
        return list(moved)
    made = [_begin(END_ATTEMPT, job, since=last_sign(job)) for job in found]
    for span, one in zip(made, moved, strict=True):
        if span.recording:
            span.set({names.JOB_STATE: one.job.state})
            span.fail(_error_type(one.job))
    messaging.end_with_commit(tx.then, made)
    return [
        replace(one, job=after_end(before, one.job, span.context))
        for before, one, span in zip(found, moved, made, strict=True)
    ]


def after_end(before: JobRow, after: JobRow, context: TraceContext | None) -> JobRow:
    """The job whose attempt has ended by the span of `context`.

    The next attempt follows from that, unless it is in another trace: then it follows from the dispatch before, so that
    it is known in which trace that was published. After the last attempt the result follows from it in any case.
    """
    if not before.live or after.live or not (after.ended or _continues(before, context)):
        return after
    return _following(after, context)


def begin_status(job: JobRow, delivery: Delivery, status: AttemptStatus) -> Span:
    """The span of handling a worker's status of the job as it was before. It follows from the worker's message."""
    published = context_in(delivery.headers) or context_of(job)
    if not tracing.enabled() or (published is not None and not published.sampled):
        return NO_SPAN if published is None else tracing.ForwardedContext(published)
    return messaging.begin_process(
        delivery.exchange,
        delivery.routing_key,
        delivery.queue,
        published,
        message_id=delivery.message_id,
        correlation_id=job.correlation_id,
        sent_at=delivery.sent_at,
        redelivered=delivery.redelivered,
        tag=delivery.tag,
        template=names.JOB_STATUS_TEMPLATE,
        attributes={**attributes_of(job), names.WORKER_ID: status.worker_id, names.JOB_STATUS: status.status},
    )


def offer(tx: Transaction, found: Sequence[JobRow], offered: Sequence[JobRow]) -> list[JobRow]:
    """The jobs as the offers to take them over are to follow: each from a span, of another trace where it is late."""
    if not tracing.enabled():
        return list(offered)
    made = [_begin(OFFER, job, since=last_sign(job)) for job in found]
    for span, job in zip(made, offered, strict=True):
        if span.recording:
            span.set({names.HANDOFF_REASON: str(job.handoff_reason), names.NODE_FROM: str(job.owner)})
    messaging.end_with_commit(tx.then, made)
    return [_following(job, span.context) for job, span in zip(offered, made, strict=True)]


def hand_off(tx: Transaction, found: Sequence[JobRow], node: str, offers: Mapping[str, Delivery]) -> None:
    """Shows in their traces that the jobs which had an owner have another one now; `offers` are the messages."""
    if tracing.enabled():
        owned = [job for job in found if job.owner is not None]
        messaging.end_with_commit(tx.then, [_begin_hand_off(job, node, offers.get(job.id)) for job in owned])


def begin_action(action: str, job: JobRow) -> Span:
    """The span of a person's `action` on the job: in the trace of the request if that is kept, else a root."""
    head, request = context_of(job), tracing.current_context()
    if request is None or not request.sampled:
        span = tracing.begin_root(action, SpanKind.INTERNAL, head, names.LINK_ACTION)
    else:
        links = [] if head is None else [SpanLink(head, names.LINK_ACTION)]
        span = tracing.begin(action, parent=request, links=links)
    if span.recording:
        span.set({**attributes_of(job), names.ACTION: action})
    return span


def act(tx: Transaction, action: str, before: JobRow, after: JobRow) -> JobRow:
    """The job on which a person has acted, following from a span of that action where no attempt is under way."""
    if not tracing.enabled():
        return after
    span = begin_action(action, before)
    messaging.end_with_commit(tx.then, [span])
    return after if after.live else _following(after, span.context)


def _begin(
    name: str,
    job: JobRow,
    *,
    links: Sequence[SpanLink] = (),
    since: datetime | None = None,
    span_id: int | None = None,
    parent: TraceContext | None = None,
) -> Span:
    span = tracing.begin(name, parent=parent or context_of(job), links=links, since=since, span_id=span_id)
    if span.recording:
        span.set(attributes_of(job))
    return span


def _begin_dispatch(before: JobRow, job: JobRow) -> Span:
    head = context_of(before)
    since, links = before.updated_at, list[SpanLink]()
    if head is not None and head.sampled and before.history_id is not None and not is_retried(before):
        links = [SpanLink(published_context(head, before.history_id), names.LINK_RETRY)]
        if int(head.span_id, 16) == _dispatch_id(before.history_id) and before.dispatched_at is not None:
            since = before.dispatched_at  # what came after that is in other traces
    span = _begin(DISPATCH, before, links=links, since=since, span_id=_dispatch_id(str(job.history_id)))
    if span.recording:
        span.set({names.JOB_ATTEMPT: job.attempt})
    return span


def _begin_redispatch(before: JobRow, job: JobRow) -> Span:
    head, links = context_of(before), list[SpanLink]()
    if head is not None and head.sampled and job.history_id is not None:
        links = [SpanLink(published_context(head, job.history_id), names.LINK_RETRY)]
    return _begin(DISPATCH, job, links=links, since=before.dispatched_at, parent=head)


def _begin_hand_off(job: JobRow, node: str, message: Delivery | None) -> Span:
    parent, since, links = context_of(job), job.handoff_at, list[SpanLink]()
    offered = None if message is None else context_in(message.headers)
    if offered is not None:
        parent, since = offered, None
        links = [SpanLink(offered, names.LINK_MESSAGE)] if offered.sampled else []
    span = _begin(HAND_OFF, job, links=links, since=since, parent=parent)
    if span.recording:
        span.set({names.NODE_FROM: str(job.owner), names.NODE_TO: node})
        span.set({} if job.handoff_reason is None else {names.HANDOFF_REASON: job.handoff_reason})
    return span


def _dispatch_id(history_id: str) -> int:
    """The id of the span that dispatches the attempt; that of its publishing is half of the attempt's id."""
    digits = history_id.replace("-", "")
    return int(digits[:16], 16) ^ int(digits[16:], 16)


def last_sign(job: JobRow) -> datetime:
    """When the job, or its worker, last gave a sign of life."""
    return max(at for at in (job.updated_at, job.dispatched_at, job.worker_beat_at) if at is not None)


def _following(job: JobRow, context: TraceContext | None) -> JobRow:
    if context is None or context.traceparent == job.trace_head:
        return job
    return replace(job, trace_head=context.traceparent)


def _continues(job: JobRow, context: TraceContext | None) -> bool:
    """Whether the context is in the trace of the job's present part."""
    head = context_of(job)
    return head is None or context is None or head.trace_id == context.trace_id


def _error_type(job: JobRow) -> str:
    error = job.error if isinstance(job.error, dict) else {}
    return str(error.get("type") or "Error")
