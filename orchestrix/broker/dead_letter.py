"""Dead letters: publishes what cannot be handled to the dead-letter queue of the queue it came from."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer, Delivery, Outcome, Outgoing, Published
from orchestrix.broker.topology import DEAD
from orchestrix.lifecycle import backoff
from orchestrix.quantities import counted
from orchestrix.saga.messages import dump
from orchestrix.telemetry import log_events
from orchestrix.telemetry.trace_context import header_text

log = logging.getLogger("orchestrix.dead_letters")

REDRIVEN: Final = "x-redriven"
"""The header that says how often a dead letter had been sent again when this copy of it left."""
DELIVERIES: Final = "x-deliveries"
_CONTEXT: Final = ("traceparent", "tracestate", REDRIVEN)


def dead_letter(delivery: Delivery, reason: str) -> Outgoing:
    """The message as it came, for the dead-letter queue of the queue it came from, with the reason."""
    message_id = delivery.message_id
    context = {name: text for name in _CONTEXT if (text := header_text(delivery.headers.get(name))) is not None}
    return Outgoing(
        exchange=DEAD,
        routing_key=delivery.queue,
        body=delivery.body,
        message_id=message_id if message_id and len(message_id.encode()) <= 255 else clock.uuid7(),
        correlation_id=delivery.correlation_id,
        type=delivery.type,
        timestamp=clock.now(),
        headers={
            **context,
            "x-reason": reason[:500],
            "x-routing-key": delivery.routing_key,
            DELIVERIES: delivery.delivery_count + 1,
        },
        reply_to=delivery.reply_to,
    )


def plain_dead_letter(delivery: Delivery, reason: str) -> Outgoing:
    """The same body without the properties that a foreign client chose: for a dead letter that the broker refuses."""
    return Outgoing(
        exchange=DEAD,
        routing_key=delivery.queue,
        body=delivery.body,
        message_id=clock.uuid7(),
        timestamp=clock.now(),
        headers={"x-reason": reason[:500]},
    )


def dead_letter_without_body(delivery: Delivery, reason: str) -> Outgoing:
    """What is left to say of a message whose body no longer fits: its size in bytes and its SHA-256."""
    facts = {"size": len(delivery.body), "sha256": hashlib.sha256(delivery.body).hexdigest()}
    return Outgoing(
        exchange=DEAD,
        routing_key=delivery.queue,
        body=dump(facts),
        message_id=clock.uuid7(),
        timestamp=clock.now(),
        headers={"x-reason": reason[:500]},
    )


FORMS: Final[tuple[Callable[[Delivery, str], Outgoing], ...]] = (
    dead_letter,
    plain_dead_letter,
    dead_letter_without_body,
)
"""A dead letter that the broker refuses is sent again in the next form."""


async def publish_dead_letter(broker: Broker, consumer: Consumer, dead: Sequence[tuple[Delivery, str]]) -> None:
    """Publishes the dead letters and returns when each is confirmed.

    One whose channel is lost meanwhile is dropped: the broker redelivers the message. While the exchange is
    missing it waits for the topology to be declared again.
    """
    left = [(delivery, reason, 0) for delivery, reason in dead]
    failures = 0
    if dead:
        delivery, reason = dead[0]
        first = "the first one " if len(dead) > 1 else ""
        extra = {"event": log_events.DEAD_LETTERED, "queue": delivery.queue, "reason": reason}
        extra |= {"correlation_id": delivery.correlation_id} if len(dead) == 1 and delivery.correlation_id else {}
        what = (counted(len(dead), "message"), first, delivery.queue, reason)
        log.warning("%s dead-lettered, %sfrom %s: %s", *what, extra=extra)
    while left := [one for one in left if consumer.alive(one[0])]:
        results = await broker.publish([FORMS[form](delivery, reason) for delivery, reason, form in left])
        tried = list(zip(left, results, strict=True))
        left = [
            (delivery, reason, min(form + (result.outcome is Outcome.REFUSED), len(FORMS) - 1))
            for (delivery, reason, form), result in tried
            if result.outcome is not Outcome.CONFIRMED
        ]
        if left:
            if failures == 0:
                log.warning("cannot publish %s yet; retrying: %s", counted(len(left), "dead letter"), _detail(tried))
            failures += 1
            await asyncio.sleep(backoff(failures))


def _detail(tried: Sequence[tuple[object, Published]]) -> str:
    return next((result.detail for _, result in tried if result.detail), "no confirm")
