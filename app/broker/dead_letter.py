"""How is a message that cannot be used kept for a person?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from app import clock
from app.broker.port import Broker, Consumer, Delivery, Outcome, Outgoing
from app.broker.topology import DEAD

log = logging.getLogger("orchestrix.dead_letters")


def dead_letter(delivery: Delivery, reason: str) -> Outgoing:
    """The message as it came, for the dead-letter queue of the queue that it came from, with the reason."""
    message_id = delivery.message_id
    return Outgoing(
        exchange=DEAD,
        routing_key=delivery.queue,
        body=delivery.body,
        message_id=message_id if message_id and len(message_id.encode()) <= 255 else clock.uuid7(),
        correlation_id=delivery.correlation_id,
        type=delivery.type,
        headers={"x-reason": reason[:500], "x-routing-key": delivery.routing_key},
    )


async def bury(broker: Broker, consumer: Consumer, dead: Sequence[tuple[Delivery, str]]) -> None:
    """Publishes the dead letters and returns when each is confirmed.

    One whose channel is lost meanwhile is dropped: the broker gives the message out again.
    """
    left = list(dead)
    while left := [(delivery, reason) for delivery, reason in left if consumer.alive(delivery)]:
        results = await broker.publish([dead_letter(delivery, reason) for delivery, reason in left])
        left = [one for one, result in zip(left, results, strict=True) if result.outcome is not Outcome.CONFIRMED]
        if left:
            log.warning("%d dead letters wait for the broker", len(left))
            await asyncio.sleep(clock.uniform(0.2, 1.0))
