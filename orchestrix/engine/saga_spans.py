"""Saga spans: the spans of what the engine does to sagas, and what their rows store of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from orchestrix.broker.port import Delivery
from orchestrix.engine.requests import StartedSaga, StartRequest, StartResult
from orchestrix.outbox.saga_log import CommittedChange
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.changes import ENDS_OF_TRIES
from orchestrix.saga.commands import SagaTransition, pending_command
from orchestrix.saga.definition import Saga
from orchestrix.saga.messages import Event, StepStarted
from orchestrix.saga.state import RETRY, Instance
from orchestrix.saga.transition import SagaStart
from orchestrix.telemetry import conventions as names
from orchestrix.telemetry import tracing
from orchestrix.telemetry.messaging import begin_process, saga_attributes
from orchestrix.telemetry.trace_context import TraceContext, context_in, published_context, trace_context
from orchestrix.telemetry.tracing import Span, SpanLink, Value

MAX_LINKS: Final = 100
"""How many links one span has at most; the SDK keeps 128."""


def head_of(instance: Instance) -> TraceContext | None:
    """The span from which the next part of its trace follows."""
    return trace_context(*instance.trace)


def command_context(instance: Instance) -> TraceContext | None:
    """The span that published the pending command."""
    head = head_of(instance)
    return None if head is None or instance.command_id is None else published_context(head, instance.command_id)


def begin_start(asked: SagaStart) -> Span:
    """The root of a saga's trace where its client has none; else nothing is to be made."""
    if asked.traceparent is not None or not tracing.enabled():
        return tracing.NO_SPAN
    return tracing.begin("start saga", attributes={names.CORRELATION_ID: asked.correlation_id})


def rooted(request: StartRequest, root: Span) -> StartRequest:
    """The request, in the trace of `root`, if there is one."""
    if root.context is None:
        return request
    parent, state = root.context
    return replace(request, start=replace(request.start, traceparent=parent, tracestate=state))


def describe_start(root: Span, result: StartResult) -> None:
    """Says of the root, or of the request's span, which saga it has started."""
    span = root if root.recording else tracing.current_span()
    if span is not None and span.recording and isinstance(result, StartedSaga):
        begun = result.instance
        span.set({**saga_attributes(begun.saga, begun.id, begun.correlation_id), names.SAGA_STATE_TO: begun.state})


def describe_commit(span: Span, started: Sequence[SagaTransition | None]) -> None:
    """Says of the span of a commit that has started a single saga which one that is."""
    if span.recording and len(started) == 1 and started[0] is not None:
        begun = started[0].instance
        span.set(saga_attributes(begun.saga, begun.id, begun.correlation_id))


def begin_event(delivery: Delivery) -> Span:
    """The span of handling an event. It has no context of its own where its sender did not pass on that of the command:
    then `at_instance` finds one.
    """
    published = context_in(delivery.headers)
    if published is None:
        return tracing.NO_SPAN
    return _begin(delivery, published)


def at_instance(span: Span, delivery: Delivery, instance: Instance) -> Span:
    """The same, once the instance is known."""
    if span is not tracing.NO_SPAN or not tracing.enabled():
        return span
    published = command_context(instance)
    return span if published is None else _begin(delivery, published)


def begin_held(headers: Mapping[str, Any], held_at: datetime, instance: Instance) -> Span:
    """The span of applying an event that was held since `held_at`: it follows from what published the event."""
    published = context_in(headers)
    if published is None and tracing.enabled():
        published = command_context(instance)
    if published is None:
        return tracing.NO_SPAN
    span = tracing.begin("apply held event", parent=published, since=held_at)
    if span.recording:
        span.set(saga_attributes(instance.saga, instance.id, instance.correlation_id))
    return span


def give_up(span: Span, why: str) -> None:
    """Ends the span of a message that is delivered again, or handled elsewhere."""
    set_ignored(span, why)
    span.end()


def set_ignored(span: Span, reason: str) -> None:
    """Notes why the message of a span has changed nothing: the part of `reason` before a colon."""
    if span.recording:
        span.set({names.IGNORED: reason.partition(":")[0]})


def unknown_event(span: Span, delivery: Delivery, reason: str) -> None:
    """An event of no saga: it has a span in any case."""
    if span is tracing.NO_SPAN and tracing.enabled():
        span = _begin(delivery, None)
    if span.recording:
        span.set({names.IGNORED: reason.partition(":")[0], names.CORRELATION_ID: delivery.correlation_id or ""})
        span.end()


def _begin(delivery: Delivery, published: TraceContext | None) -> Span:
    return begin_process(
        delivery.exchange,
        delivery.routing_key,
        delivery.queue,
        published,
        message_id=delivery.message_id,
        correlation_id=delivery.correlation_id,
        sent_at=delivery.sent_at,
        redelivered=delivery.redelivered,
        tag=delivery.tag,
    )


def with_trace(event: Event, span: Span) -> Event:
    """The event, whose history rows name the trace of the span that handles it."""
    context = span.context
    if context is None or event.trace_id == context.trace_id:
        return event
    return replace(event, trace_id=context.trace_id)


def traceparent_of(span: Span) -> str | None:
    """What an instance stores of the span that moves it."""
    return None if span.context is None else span.context.traceparent


def describe(span: Span, before: Instance | None, moved: CommittedChange) -> None:
    """The attributes of a span that has moved an instance."""
    if not span.recording:
        return
    after = moved.instance
    values = saga_attributes(after.saga, after.id, after.correlation_id)
    values[names.SAGA_STATE_TO] = after.state
    if before is not None:
        values[names.SAGA_STATE_FROM] = before.state
    first = next(iter(moved.history), None)
    if first is not None and first.step is not None:
        values[names.SAGA_STEP] = first.step
    if before is not None and first is not None and first.kind in ENDS_OF_TRIES:
        values[names.SAGA_ATTEMPT] = before.attempt
    span.set(values)


def describe_ignored(span: Span, saga: str, event: Event, reason: str) -> None:
    """The attributes of a span whose event has changed nothing."""
    if span.recording:
        values = saga_attributes(saga, event.app_id, event.correlation_id)
        span.set({**values, names.IGNORED: reason.partition(":")[0]})


def describe_report(span: Span, report: StepStarted) -> None:
    """The attributes of the span of a report that the work on a command has begun."""
    if span.recording:
        values: dict[str, Value] = {names.SAGA_ID: report.app_id, names.CORRELATION_ID: report.correlation_id}
        span.set(values if report.saga is None else {**values, names.SAGA_NAME: report.saga})


def begin_timer(saga: Saga, instance: Instance) -> Span:
    """The span of a wake-up: a child of what the instance has waited for since its last change. A retry links to the
    try before it.
    """
    head = head_of(instance)
    if not tracing.enabled() or (head is not None and not head.sampled):
        return tracing.ForwardedContext(head) if head is not None else tracing.NO_SPAN
    here = pending_command(saga, instance)
    values: dict[str, Value] = {
        **saga_attributes(instance.saga, instance.id, instance.correlation_id),
        names.TIMER_REASON: instance.wake_reason or "",
        names.SAGA_STATE_FROM: instance.state,
        names.SAGA_ATTEMPT: instance.attempt,
    }
    if here is not None:
        values |= {names.SAGA_STEP: here.step.name, names.SAGA_COMPENSATING: here.undoes}
    name = "retry" if instance.wake_reason == RETRY else "deadline"
    return tracing.begin(
        f"timer {name}", parent=head, links=_retry_links(instance), attributes=values, since=_since(instance)
    )


def _since(instance: Instance) -> datetime:
    return instance.sending or instance.updated_at


def _retry_links(instance: Instance) -> list[SpanLink]:
    former = trace_context(instance.progress.retry_of)
    if former is None or not instance.progress.sent or instance.wake_reason != RETRY:
        return []
    return [SpanLink(published_context(former, instance.progress.sent[-1]), names.LINK_RETRY)]


def headed(moved: SagaTransition, span: Span) -> SagaTransition:
    """`moved`, whose next part follows from `span`, which its history names."""
    if span.context is None:
        return moved
    instance = replace(moved.instance, trace_head=span.context.traceparent)
    history = tuple(replace(row, trace_id=span.context.trace_id) for row in moved.history)
    return replace(moved, instance=instance, history=history)


def begin_action(action: str, instance: Instance) -> Span:
    """The span of a person's action: part of the request's trace, and linked to what it acts on. Where the request is
    not kept but the saga is, it begins a trace of its own.

    So it does where the request is in the trace of the saga itself: a command that is sent again with its id would have
    the span of its first copy there.
    """
    head, request = head_of(instance), tracing.current_context()
    if not tracing.enabled() or (head is None and request is None):
        return tracing.NO_SPAN if head is None else tracing.ForwardedContext(head)
    if head is not None and not head.sampled:
        return tracing.ForwardedContext(head)
    links = [] if head is None else [SpanLink(head, names.LINK_ACTION)]
    if action == SagaAction.RETRY.value:
        links += _retry_links(instance)
    within = request is not None and request.sampled and (head is None or head.trace_id != request.trace_id)
    return tracing.begin(
        f"action {action}",
        parent=request if within else None,
        links=links,
        attributes={**saga_attributes(instance.saga, instance.id, instance.correlation_id), names.ACTION: action},
    )


def sent_by_request(rows: list[OutboxRow], instances: Sequence[Instance]) -> list[OutboxRow]:
    """Rows that a person's request sends again: they belong to its trace, which links to what it acts on, the first
    `MAX_LINKS` of it. Those of sagas that are not kept or have that trace already, and what the engine sends by itself,
    follow from their first copy.
    """
    span = tracing.current_span()
    if span is None or not span.recording or span.context is None:
        return rows
    heads = {one.id: head_of(one) for one in instances}
    for known in list(filter(None, heads.values()))[:MAX_LINKS]:
        span.link(SpanLink(known, names.LINK_ACTION))
    parent, state = span.context
    return [
        row
        if (head := heads[row.instance_id]) is not None and (not head.sampled or head.trace_id == span.context.trace_id)
        else replace(row, traceparent=parent, tracestate=state, n=1)
        for row in rows
    ]
