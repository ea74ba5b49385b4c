"""Shard transport: what a coordinator needs of the way by which members talk to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, TypeAlias

from orchestrix.shards.rabbitmq import MemberAnswer, RequestHandler


class Transport(Protocol):
    """Brings requests to a handler, and answers to members."""

    async def start(self) -> None:
        """Begins to take requests."""

    async def stop(self) -> None:
        """Takes no more; one that is being handled is answered."""

    async def send(self, answers: Sequence[MemberAnswer]) -> None:
        """Sends answers, also those that no member has asked for. One that is lost is not sent again."""


ZMQ_PREFIX: Final = "zmq:"
"""How the address of a ZeroMQ client begins; its identity follows, in hexadecimal digits."""


class MemberService(RequestHandler, Protocol):
    """What is behind a transport by which clients are connected to one node."""

    async def current(self, addresses: Collection[str]) -> Sequence[MemberAnswer]:
        """What the members with these addresses have now. Raises `RetryableError`."""


MakeTransport: TypeAlias = Callable[[MemberService], Transport]
"""Makes the transport that brings its requests to that handler."""
