"""Combined transport: members by RabbitMQ, and clients of sockets, at one coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrix.shards.rabbitmq import MemberAnswer
from orchestrix.shards.transport import Transport


@dataclass(frozen=True, slots=True)
class CombinedTransport:
    """`by_queue` reaches the members that any node can reach, `by_socket` those whose node is named."""

    by_queue: Transport
    by_socket: Transport

    async def start(self) -> None:
        """Begins to take requests of both."""
        await self.by_queue.start()
        await self.by_socket.start()

    async def stop(self) -> None:
        """Takes no more."""
        await self.by_socket.stop()
        await self.by_queue.stop()

    async def send(self, answers: Sequence[MemberAnswer]) -> None:
        """Sends answers: those by sockets first, for they never wait for the broker."""
        await self.by_socket.send([one for one in answers if one.via is not None])
        await self.by_queue.send([one for one in answers if one.via is None])
