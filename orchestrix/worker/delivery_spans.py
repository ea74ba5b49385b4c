"""Delivery spans: the spans of handling what a worker receives, and of publishing what it reports of that."""

from __future__ import annotations

from typing import Final

from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.saga.messages import Command
from orchestrix.telemetry import conventions as names
from orchestrix.telemetry import tracing
from orchestrix.telemetry.messaging import begin_process, begin_publish, saga_attributes
from orchestrix.telemetry.trace_context import context_in
from orchestrix.telemetry.tracing import Attributes, Span, SpanLink, Value

DUPLICATE: Final = "duplicate"
"""The same message is handled already, or was."""
GIVEN_BACK: Final = "given-back"
"""It is requeued: another worker, or this one later, handles it. No error of the saga's."""
SET_ASIDE: Final = "set-aside"
"""It is published again at the end of its queue."""
CHANNEL_LOST: Final = "channel-lost"
"""Its channel was lost before the work began: the broker delivers it again."""
UNREPORTED: Final = "unreported"
"""The worker ended before its event was confirmed: the broker delivers it again."""


def begin_delivery(delivery: Delivery, *, died: bool = False) -> Span:
    """The span of handling the delivery; `died` says that a worker may have died with a former copy of it."""
    return begin_process(
        delivery.exchange,
        delivery.routing_key,
        delivery.queue,
        context_in(delivery.headers),
        message_id=delivery.message_id,
        correlation_id=delivery.correlation_id,
        sent_at=delivery.sent_at,
        redelivered=delivery.redelivered or died,
        tag=delivery.tag,
    )


def describe_command(span: Span, command: Command, worker_id: str | None) -> None:
    """Sets the attributes of the span of a command."""
    if not span.recording:
        return
    values = saga_attributes_of(command)
    values |= {names.SAGA_STEP: command.step, names.SAGA_ATTEMPT: command.attempt}
    if command.undoes_attempt is not None:
        values[names.SAGA_COMPENSATING] = True
    if worker_id is not None:
        values[names.WORKER_ID] = worker_id
    span.set(values)


def saga_attributes_of(command: Command) -> dict[str, Value]:
    """What every span of the command has."""
    return saga_attributes(command.saga, command.app_id, command.correlation_id)


def set_ignored(span: Span, reason: str) -> None:
    """Notes why nothing comes of the delivery: the part of `reason` before a colon."""
    if span.recording:
        span.set({names.IGNORED: reason.partition(":")[0]})


def end_ignored(span: Span, reason: str) -> None:
    """Ends the span of a delivery of which nothing comes."""
    set_ignored(span, reason)
    span.end()


def is_kept(span: Span) -> bool:
    """Whether what follows from the span, which may have ended, has spans of its own."""
    return tracing.enabled() and span.context is not None and span.context.sampled


def publish_span(
    outgoing: Outgoing, made_by: Span, attributes: Attributes, *, again: bool, template: str | None = None
) -> Span:
    """The span of publishing what `made_by` has made; `again` if it was published before."""
    return begin_publish(
        outgoing.exchange,
        outgoing.routing_key,
        outgoing.message_id,
        made_by.context,
        correlation_id=outgoing.correlation_id,
        again=again,
        template=template,
        attributes=attributes,
    )


def dead_letter_span(outgoing: Outgoing, delivery: Delivery, made_by: Span, attributes: Attributes) -> Span:
    """The span of publishing a delivery as a dead letter, which keeps the context of the message that it was; linked to
    whoever has published that."""
    published = context_in(delivery.headers)
    return begin_publish(
        outgoing.exchange,
        outgoing.routing_key,
        outgoing.message_id,
        made_by.context,
        correlation_id=outgoing.correlation_id,
        links=[] if published is None else [SpanLink(published, names.LINK_RETRY)],
        attributes=attributes,
    )


def context_headers(span: Span) -> dict[str, str]:
    """The headers of what follows from the span."""
    return {} if span.context is None else span.context.headers
