"""Dead letter parser: reads what a dead message says of itself and of its death."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from orchestrix import clock
from orchestrix.broker.dead_letter import DELIVERIES, REDRIVEN
from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import COMMANDS, DEAD, EVENTS, UNROUTED
from orchestrix.persistence.dead_letters import DeadLetter, kept
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import STEP_FAILED
from orchestrix.saga.messages import MAX_BODY, MAX_ID
from orchestrix.telemetry.trace_context import context_in

DELIVERY_LIMIT: Final = "delivery_limit"
"""The broker's reason for a message that was redelivered too often: no handler has judged it."""
UNROUTED_REASON: Final = "unrouted"
UNKNOWN: Final = "unknown"
REPLY_TO: Final = "x-reply-to"
"""The stored header that has the property `reply_to` of the message: a redrive gives it back."""
_HEADERS_LIMIT_BYTES: Final = 16 * 1024
_NAME_LIMIT: Final = 40
_LONGEST_CONTEXT: Final = 512
_LONGEST_SHORT: Final = 255
"""Bytes of the texts outside of headers and body."""
_ERRORS: Final[Mapping[str, str]] = {
    DELIVERY_LIMIT: "exceeded the delivery limit (worker died or requeued it)",
    "rejected": "rejected by its consumer",
    "expired": "expired in the queue",
    "maxlen": "the queue was full",
    UNROUTED_REASON: "no queue is bound for its routing key",
}


@dataclass(frozen=True, slots=True)
class ParsedDeadLetter:
    """A dead message. `delivery` is the copy in the dead-letter queue.

    `times` is how often the message had been redriven before this death; if it bears the id of the dead letter that it
    was redriven from, `earlier` is that. `timed` says that the broker recorded the time of this death, in seconds.
    """

    dead_letter: DeadLetter
    delivery: Delivery
    times: int
    earlier: str | None
    timed: bool


def parse(delivery: Delivery, catalog: Catalog, now: datetime) -> ParsedDeadLetter:
    """Parses a delivery from a dead-letter queue, or from that of the unrouted. Any message can be read."""
    queue = source_of(delivery)
    death = _death(delivery, queue)
    died_at = _time(death)
    fields = _fields(delivery.body)
    body, size, digest = kept(delivery.body)
    reason, error = _reason(delivery, queue, death, fields)
    dead_letter = DeadLetter(
        id=_identity(delivery, queue, digest, died_at),
        queue=queue,
        exchange=_exchange(delivery, queue),
        routing_key=_routing_key(delivery, queue),
        type=_routing_key(delivery, queue) or delivery.type or "",
        saga=_saga(catalog, _addressed(queue, _routing_key(delivery, queue)), fields),
        instance_id=_instance(fields),
        message_id=delivery.message_id or _text(fields, "id"),
        correlation_id=delivery.correlation_id or _text(fields, "correlationId"),
        reason=reason,
        error=error,
        deliveries=_deliveries(delivery, reason),
        body=body,
        body_size=size,
        body_sha256=digest,
        headers=_headers(delivery),
        died_at=died_at or now,
        recorded_at=now,
    )
    return ParsedDeadLetter(dead_letter, delivery, _times(delivery), _earlier(delivery), died_at is not None)


def corrected(dead_letter: DeadLetter, content: bytes, catalog: Catalog, now: datetime) -> DeadLetter:
    """The dead letter with another body, and about the instance that this one names.

    Where it names no correlation id, the previous one stays.
    """
    fields = _fields(content)
    body, size, digest = kept(content)
    return replace(
        dead_letter,
        body=body,
        body_size=size,
        body_sha256=digest,
        saga=_saga(catalog, _addressed(dead_letter.queue, dead_letter.routing_key), fields),
        instance_id=_instance(fields),
        correlation_id=_text(fields, "correlationId") or dead_letter.correlation_id,
        edited_at=now,
    )


def cause_of(dead_letter: DeadLetter) -> str | None:
    """The id of the command that a dead answer names, as far as that can be read."""
    return _text(_fields(dead_letter.body or b""), "causationId")


def republished(delivery: Delivery) -> Outgoing:
    """The same message as if it had just died, for a dead-letter queue that has delivered it too often.

    The broker's record of its death cannot be written again; it is given in the headers that the library writes when it
    dead-letters a message. What is too long to be sent, because it was no UTF-8, is cut.
    """
    queue = source_of(delivery)
    death, unrouted = _death(delivery, queue), queue == UNROUTED
    reason, _ = _reason(delivery, queue, death, {})
    fields: dict[str, str | int] = {}
    for name in ("traceparent", "tracestate", REDRIVEN):
        value = delivery.headers.get(name)
        fields |= {name: value[:_LONGEST_CONTEXT]} if isinstance(value, str) else {}
    if not unrouted:
        fields |= {"x-reason": reason[:500], "x-routing-key": _routing_key(delivery, queue)[:255]}
        fields |= {DELIVERIES: _deliveries(delivery, reason)}
    return Outgoing(
        exchange=EVENTS if unrouted else DEAD,
        routing_key=_short(delivery.routing_key if unrouted else queue),
        body=delivery.body,
        message_id=_name(delivery.message_id),
        correlation_id=_short(delivery.correlation_id or ""),
        type=_short(delivery.type or ""),
        timestamp=_time(death),
        headers=fields,
        reply_to=_short(delivery.reply_to) if delivery.reply_to else None,
    )


def source_of(delivery: Delivery) -> str:
    """The queue in which the message died; `orchestrator.unrouted` for one that was never routed."""
    if delivery.exchange == DEAD:
        return delivery.routing_key
    return delivery.queue.removesuffix(".dead")


def _short(text: str) -> str:
    return text.encode()[:_LONGEST_SHORT].decode(errors="ignore")


def _name(message_id: str | None) -> str:
    """A message id that stays the same however often the message is requeued."""
    if not message_id:
        return clock.uuid7()
    return message_id if _short(message_id) == message_id else clock.named_uuid(message_id.encode())


def _identity(delivery: Delivery, queue: str, digest: str, died_at: datetime | None) -> str:
    """The same for every copy of one message. Those without an id are distinguished by the time of their death.

    The broker gives no time for those that it could not route: their routing keys distinguish them.
    """
    key = delivery.message_id or (died_at.isoformat() if died_at else delivery.routing_key)
    return clock.named_uuid(*(part.encode(errors="replace") for part in (queue, key, digest)))


def _earlier(delivery: Delivery) -> str | None:
    """The id of the dead letter it was redriven from: a message without an id of its own is redriven under that."""
    try:
        return str(UUID(delivery.message_id or ""))
    except ValueError:
        return None


def _death(delivery: Delivery, queue: str) -> Mapping[str, Any]:
    """The broker's record of the death in that queue; empty if the broker did not dead-letter it."""
    value = delivery.headers.get("x-death")
    deaths = value if isinstance(value, list) else []
    return next((one for one in deaths if isinstance(one, dict) and one.get("queue") == queue), {})


def _time(death: Mapping[str, Any]) -> datetime | None:
    seconds = death.get("time")
    return datetime.fromtimestamp(seconds, UTC) if type(seconds) is int and 0 < seconds < 2**35 else None


def _reason(
    delivery: Delivery, queue: str, death: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[str, str | None]:
    """(reason, error). What the broker says comes before what a client may have written into the headers."""
    value = death.get("reason") or (UNROUTED_REASON if queue == UNROUTED else None)
    if isinstance(value, str) and value:
        return value, _ERRORS.get(value)
    for header in ("x-reason", "x-first-death-reason"):
        text = delivery.headers.get(header)
        if isinstance(text, str) and text:
            return text, text.partition(": ")[2] or _ERRORS.get(text) or _failure(queue, fields)
    return UNKNOWN, None


def _failure(queue: str, fields: Mapping[str, Any]) -> str | None:
    """The error of a failure event that was not handled."""
    error = fields.get("error") if queue == STEP_FAILED else None
    if not isinstance(error, dict):
        return None
    parts = [error.get(name) for name in ("type", "message")]
    return ": ".join(str(one) for one in parts if one and not isinstance(one, dict | list)) or None


def _exchange(delivery: Delivery, queue: str) -> str:
    if delivery.exchange not in (DEAD, ""):
        return delivery.exchange
    return COMMANDS if queue.startswith("cmd.") else EVENTS if queue.startswith("evt.") else ""


def _routing_key(delivery: Delivery, queue: str) -> str:
    """The original routing key: the broker records it in the death, the library in a header when it dead-letters."""
    if queue == UNROUTED:
        return delivery.routing_key
    value = delivery.headers.get("x-routing-key")
    keys = _death(delivery, queue).get("routing-keys")
    first = keys[0] if isinstance(keys, list) and keys else value
    return first if isinstance(first, str) and first else queue


def _addressed(queue: str, routing_key: str) -> str:
    """The queue that the message was for."""
    return routing_key if queue == UNROUTED else queue


def _saga(catalog: Catalog, queue: str, fields: Mapping[str, Any]) -> str | None:
    owner = catalog.command(queue) or catalog.event(queue)
    if owner is not None:
        return owner.saga.name
    name = _text(fields, "saga")
    return name if name and len(name) <= _NAME_LIMIT else None


def _instance(fields: Mapping[str, Any]) -> int | None:
    value = fields.get("appId")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        value = int(value)
    return value if type(value) is int and 0 < value < MAX_ID else None


def _fields(body: bytes) -> Mapping[str, Any]:
    """What can be read of a body, also of one that breaks the rules of messages."""
    try:
        found = json.loads(body) if len(body) <= MAX_BODY else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def _deliveries(delivery: Delivery, reason: str) -> int:
    """Number of failed deliveries; 0 where they were not counted: the broker does not say at which limit it died.

    The broker's own count is that of the dead-letter queue.
    """
    count = delivery.headers.get(DELIVERIES)
    if type(count) is int and 0 < count < MAX_ID:
        return count
    return 0 if reason in (DELIVERY_LIMIT, "expired", "maxlen", UNROUTED_REASON) else 1


def _times(delivery: Delivery) -> int:
    value = delivery.headers.get(REDRIVEN)
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    return int(str(value)) if digits else 0


def _headers(delivery: Delivery) -> dict[str, Any]:
    """The headers to store, with where answers are expected: the property alone says that, no header of a client."""
    found = _kept_headers(delivery.headers)
    found.pop(REPLY_TO, None)
    return found | {REPLY_TO: delivery.reply_to} if delivery.reply_to else found


def _kept_headers(headers: Mapping[str, object]) -> dict[str, Any]:
    """A client's headers; those that are too many are kept only as far as they say why the message is dead, and what
    it followed from."""
    if len(repr(headers)) <= _HEADERS_LIMIT_BYTES:
        return dict(headers)
    context = context_in(headers)
    reasons = {name: str(headers[name])[:500] for name in ("x-reason", "x-first-death-reason") if name in headers}
    return reasons if context is None else {**context.headers, **reasons}
