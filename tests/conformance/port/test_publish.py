"""What does publishing promise?"""

from __future__ import annotations

from app.broker.port import Outcome
from app.broker.rabbitmq import AmqpBroker
from tests.conformance.port.conftest import WORK, message


async def test_five_thousand_messages_are_all_confirmed(broker: AmqpBroker) -> None:
    await broker.declare(WORK)
    published = await broker.publish([message(b"%d" % n) for n in range(5000)])
    assert {one.outcome for one in published} == {Outcome.CONFIRMED}
    assert await broker.message_count("jobs") == (5000, 0)
