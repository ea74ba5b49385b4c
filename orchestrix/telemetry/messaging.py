"""Messaging spans: publishing, processing and committing messages, by OpenTelemetry's conventions for RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from orchestrix import clock
from orchestrix.telemetry import conventions as names
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext, published_context, span_id_for
from orchestrix.telemetry.tracing import Attributes, Span, SpanKind, SpanLink, Value

PUBLISH: Final = "publish"
PROCESS: Final = "process"
SEND_TYPE: Final = "send"
COMMIT: Final = "commit"


def saga_attributes(saga: str, instance_id: int, correlation_id: str) -> dict[str, Value]:
    """What every span of a saga has."""
    return {names.SAGA_NAME: saga, names.SAGA_ID: instance_id, names.CORRELATION_ID: correlation_id}


def begin_publish(
    exchange: str,
    routing_key: str,
    message_id: str,
    made_by: TraceContext | None,
    *,
    correlation_id: str | None = None,
    made_at: datetime | None = None,
    again: bool = False,
    elsewhere: bool = False,
    links: Sequence[SpanLink] | None = None,
    template: str | None = None,
    attributes: Attributes | None = None,
) -> Span:
    """The span of publishing one message, a child of the span that made it; `made_at` is when that was.

    The first one has the id of `trace_context.published_context`; one that is published `again` links to that, unless
    it was published `elsewhere`, in a trace that is not known. What others have published first, in whichever trace,
    has `links` instead. A name with an id in it needs a `template`, which stands for it in the span's name.
    """
    if made_by is None or not made_by.sampled or not tracing.enabled():
        return tracing.begin(PUBLISH, SpanKind.PRODUCER, made_by) if made_by is not None else tracing.NO_SPAN
    destination = f"{exchange}:{routing_key}" if exchange else routing_key
    first = span_id_for(message_id) if links is None else None
    if again and first is not None and not elsewhere:
        links = [SpanLink(published_context(made_by, message_id), names.LINK_RETRY)]
    values: dict[str, Value] = {
        names.MESSAGING_SYSTEM: names.RABBITMQ,
        names.MESSAGING_OPERATION_NAME: PUBLISH,
        names.MESSAGING_OPERATION_TYPE: SEND_TYPE,
        names.MESSAGING_DESTINATION_NAME: destination,
        names.MESSAGING_ROUTING_KEY: routing_key,
        names.MESSAGING_MESSAGE_ID: message_id,
        **(attributes or {}),
    }
    if correlation_id is not None:
        values[names.MESSAGING_CONVERSATION_ID] = correlation_id
    if template is not None:
        values[names.MESSAGING_DESTINATION_TEMPLATE] = template
    if made_at is not None:
        values[names.OUTBOX_WAIT_MS] = _milliseconds_since(made_at)
    return tracing.begin(
        f"{PUBLISH} {template or destination}",
        SpanKind.PRODUCER,
        made_by,
        links=links or (),
        attributes=values,
        span_id=None if again else first,
    )


def begin_process(
    exchange: str,
    routing_key: str,
    queue: str,
    published: TraceContext | None,
    *,
    message_id: str | None = None,
    correlation_id: str | None = None,
    sent_at: float | None = None,
    redelivered: bool = False,
    tag: int | None = None,
    template: str | None = None,
    attributes: Attributes | None = None,
) -> Span:
    """The span of handling one message: a child of the span that published it, which it links to as well.

    `sent_at` is the sender's time (seconds since 1970): a message that waited for longer than
    `ORCHESTRIX_TRACES__SPLIT_AFTER` begins a new trace that links back. One without a context begins its own trace.
    """
    if not tracing.enabled() or (published is not None and not published.sampled):
        return tracing.NO_SPAN if published is None else tracing.ForwardedContext(published)
    parts = (exchange, routing_key, "" if queue == routing_key else queue)
    destination = ":".join(part for part in parts if part)
    values: dict[str, Value] = {
        names.MESSAGING_SYSTEM: names.RABBITMQ,
        names.MESSAGING_OPERATION_NAME: PROCESS,
        names.MESSAGING_OPERATION_TYPE: PROCESS,
        names.MESSAGING_DESTINATION_NAME: destination,
        names.MESSAGING_ROUTING_KEY: routing_key,
        names.REDELIVERED: redelivered,
        **(attributes or {}),
    }
    optional: dict[str, Value | None] = {
        names.MESSAGING_MESSAGE_ID: message_id,
        names.MESSAGING_CONVERSATION_ID: correlation_id,
        names.MESSAGING_DELIVERY_TAG: tag,
        names.MESSAGING_DESTINATION_TEMPLATE: template,
    }
    values.update((name, value) for name, value in optional.items() if value is not None)
    sent = _moment(_sent_at(sent_at, message_id))
    if sent is not None:
        values[names.QUEUE_WAIT_MS] = _milliseconds_since(sent)
    kind = names.LINK_RETRY if redelivered else names.LINK_MESSAGE
    return tracing.begin(
        f"{PROCESS} {template or destination}",
        SpanKind.CONSUMER,
        published,
        links=[] if published is None else [SpanLink(published, kind)],
        attributes=values,
        since=sent,
    )


def begin_commit(contexts: Sequence[TraceContext | None]) -> Span:
    """The span of one commit for all who have these contexts: a child of a single one, else the root of a trace that
    links to each that is kept.
    """
    kept = [one for one in contexts if one is not None and one.sampled] if tracing.enabled() else []
    if not kept:
        return tracing.NO_SPAN
    attributes: dict[str, Value] = {names.MESSAGING_BATCH_SIZE: len(contexts)}
    if len(contexts) == 1:
        return tracing.begin(COMMIT, parent=kept[0], attributes=attributes)
    return tracing.begin(COMMIT, links=[SpanLink(one, names.LINK_BATCH) for one in kept], attributes=attributes)


def _sent_at(stamped: float | None, message_id: str | None) -> float | None:
    """When the message was sent. AMQP says it in whole seconds; an id with a time (UUIDv7) of the same second says in
    which millisecond. Without one it is the end of that second: so a wait is never shown longer than it was.
    """
    if stamped is None or not stamped.is_integer():
        return stamped
    try:
        made = UUID(message_id or "")
    except ValueError:
        return stamped + 1.0
    seconds = (made.int >> 80) / 1000 if made.version == 7 else 0.0
    return seconds if int(seconds) == stamped else stamped + 1.0


def _moment(seconds: float | None) -> datetime | None:
    """None also for what is no time: a foreign client chooses it."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def end_with_commit(then: Callable[[Callable[[], None]], None], spans: Sequence[Span]) -> None:
    """Begins the span of the commit for all of them. It and they end after that; a rollback leaves none of them.

    `then` lets something be called after the commit, as `Transaction.then` does.
    """
    kept = [one for one in spans if one.recording]
    if kept:
        for one in (begin_commit([span.context for span in kept]), *kept):
            then(one.end)


def _milliseconds_since(then: datetime) -> float:
    return round(max(0.0, (clock.now() - then).total_seconds() * 1000), 3)
