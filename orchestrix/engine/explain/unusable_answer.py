"""Unusable answer: the last answer to the command in flight that became a dead letter."""

from __future__ import annotations

from orchestrix.broker.topology import UNROUTED
from orchestrix.dead_letters.parse import cause_of
from orchestrix.persistence import dead_letters
from orchestrix.persistence.dead_letters import DeadLetter, DeadLetterFilter
from orchestrix.persistence.engine import Connection
from orchestrix.saga.commands import expected
from orchestrix.saga.definition import STEP_FAILED, Saga
from orchestrix.saga.state import Instance


async def unusable_answer(connection: Connection, saga: Saga, instance: Instance) -> DeadLetter | None:
    """The last answer to the command in flight that could not be used, if it is still among the dead letters."""
    order = expected(saga, instance)
    if order is None or not instance.live or instance.blocker is not None:
        return None
    found: list[DeadLetter] = []
    for queue in (order.event, STEP_FAILED):
        wanted = DeadLetterFilter(queue=queue, saga=saga.name, instance_id=instance.id)
        found += await dead_letters.page(connection, wanted, 1)
    wanted = DeadLetterFilter(queue=UNROUTED, saga=saga.name, instance_id=instance.id)
    found += [one for one in await dead_letters.page(connection, wanted, 1) if one.type in (order.event, STEP_FAILED)]
    latest = max(found, key=lambda dead_letter: dead_letter.died_at, default=None)
    return latest if latest is not None and answers(instance, latest) else None


def answers(instance: Instance, dead_letter: DeadLetter) -> bool:
    """Whether a dead-lettered answer is one to the command that is in flight now.

    One that does not say what it answers can be, if it died since the last change. Brokers give that in whole seconds.
    """
    cause = cause_of(dead_letter)
    if cause is not None:
        return cause == instance.command_id
    return dead_letter.died_at >= instance.updated_at.replace(microsecond=0)
