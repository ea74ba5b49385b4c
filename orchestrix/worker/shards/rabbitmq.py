"""Shard member's transport: sends what a member says to the coordinators, and receives their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer, Outcome, Outgoing
from orchestrix.broker.topology import SHARD_COORDINATOR, member_queue, member_topology
from orchestrix.errors import ConfigError, Unavailable

ANSWERS_PREFETCH: Final = 10


@dataclass(frozen=True, slots=True)
class ReceivedAssignment:
    """What a coordinator has sent; `correlation_id` is that of the message that it answers, if it answers one."""

    body: bytes
    correlation_id: str | None


class MemberTransport:
    """Reads answers in a queue of its own, whose name is new with each connection: that of a connection that the broker
    has not missed yet would be locked. Answers that went there are lost; the next heartbeat brings the same.

    The queue is declared before the first message over each connection, so that its answer finds it. `member` is an
    id as in `member_queue`.
    """

    def __init__(self, broker: Broker, member: str) -> None:
        self._broker = broker
        self._queue, self._topology = member_queue(member), member_topology(member)
        self._declared = 0
        self._consumer: Consumer | None = None

    async def start(self) -> None:
        """Begins to listen for answers; the broker need not be reachable."""
        self._consumer = await self._broker.consume([self._queue], ANSWERS_PREFETCH, own_topology=self._topology)

    async def stop(self) -> None:
        """Listens no more: `receive` returns an empty list."""
        if self._consumer is not None:
            await self._consumer.close()

    async def send(self, kind: str, body: bytes, correlation_id: str | None = None, *, timeout: float = 5.0) -> bool:
        """Whether the broker has confirmed the message of that type within `timeout` seconds, and will bring its
        answer. One that is not confirmed may arrive all the same; it is not sent again.

        Raises ConfigError where the broker refuses the queue or the message.
        """
        if not await self._listens():
            return False
        message = Outgoing(
            exchange="",
            routing_key=SHARD_COORDINATOR,
            body=body,
            message_id=clock.uuid7(),
            correlation_id=correlation_id,
            type=kind,
            timestamp=clock.now(),
            reply_to=self._queue,
        )
        (published,) = await self._broker.publish([message], timeout)
        if published.outcome is Outcome.REFUSED:
            raise ConfigError(f"the broker refuses what this member of a service sends: {published.detail}")
        return published.outcome is Outcome.CONFIRMED

    async def receive(self) -> Sequence[ReceivedAssignment]:
        """Waits for answers, and returns those that are there, in order; none when it is closed."""
        assert self._consumer is not None, "it has begun"
        taken = await self._consumer.receive(ANSWERS_PREFETCH)
        await self._consumer.acknowledge(taken)
        return [ReceivedAssignment(one.body, one.correlation_id) for one in taken]

    async def _listens(self) -> bool:
        """Whether the queue is there: declared over the connection that is up."""
        generation = self._broker.generation
        if self._declared != generation or not generation:
            try:
                await self._broker.declare(self._topology)
            except Unavailable:
                return False
            self._declared = generation
        return True
