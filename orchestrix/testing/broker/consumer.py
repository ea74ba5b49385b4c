"""Memory consumer: implements `port.Consumer` over `MemoryServer`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from orchestrix.broker.port import Delivery, Topology, Wanted
from orchestrix.errors import Unavailable
from orchestrix.testing.broker.server import BrokerSession, MemoryServer, ServerChannel

if TYPE_CHECKING:
    from orchestrix.testing.broker.client import MemoryBroker

STEP: Final = 4
"""The prefetch grows by this factor."""


class MemoryConsumer:
    """`port.Consumer` over `MemoryServer`."""

    def __init__(
        self,
        broker: MemoryBroker,
        server: MemoryServer,
        queues: Sequence[str],
        limit: int,
        exclusive: bool,
        own_topology: Topology | None = None,
        dynamic_topology: Wanted | None = None,
    ) -> None:
        self._broker, self._server = broker, server
        self._queues, self._limit, self._exclusive, self._own_topology = tuple(queues), limit, exclusive, own_topology
        self._dynamic_topology = dynamic_topology
        self._redeclaring: asyncio.Task[None] | None = None
        self._inbox: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._channel: ServerChannel | None = None
        self._unfinished: dict[int, None] = {}
        self._lost_hooks: list[Callable[[], None]] = []
        self._finished = 0
        self._prefetch = self._first
        self._allowed: dict[str, int] = {}
        self._paused = self._closed = False

    @property
    def _first(self) -> int:
        """The initial prefetch."""
        return 1 if self._own_topology is None else self._limit

    @property
    def closed(self) -> bool:
        """Whether no more deliveries will come."""
        return self._closed

    @property
    def unread(self) -> Sequence[str]:
        return self._queues if self._channel is None else ()

    async def receive(self, limit: int, linger: float = 0.0) -> list[Delivery]:
        while not self._inbox:
            if self._closed:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        if linger > 0 and len(self._inbox) < min(limit, self._prefetch):
            await asyncio.sleep(linger)
        return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    async def acknowledge(self, deliveries: Sequence[Delivery], *, grow: bool = True) -> None:
        for delivery in deliveries:
            for tap in self._server.observers:
                tap.acknowledging(delivery)
        finished = self._settle(deliveries, requeue=False)
        self._finished += finished if grow else 0
        if self._finished >= self._prefetch:
            self.grow()

    def grow(self) -> None:
        if self._prefetch < self._limit:
            self._prefetch, self._finished = min(self._prefetch * STEP, self._limit), 0
            self._subscribe()

    def allow(self, queue: str, limit: int) -> None:
        if self._allowed.get(queue) != limit:
            self._allowed[queue] = limit
            if (channel := self._channel) is not None:
                channel.session.consume_up.send(lambda: self._server.allow(channel, queue, limit))

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        self._settle(deliveries, requeue=True)

    def alive(self, delivery: Delivery) -> bool:
        return self._channel is not None and delivery.session == self._channel.number

    def on_channel_lost(self, hook: Callable[[], None]) -> None:
        self._lost_hooks.append(hook)

    def also_read(self, queues: Sequence[str]) -> None:
        before, self._queues = self._queues, tuple(dict.fromkeys((*self._queues, *queues)))
        channel = self._channel
        if channel is not None and before != self._queues:
            self.detach()
            channel.session.consume_up.send(lambda: self._server.close_channel(channel))
            self.attach(channel.session)

    async def pause(self) -> None:
        self._paused = True
        if (channel := self._channel) is not None:
            await self._broker.ask(lambda: self._server.pause(channel))

    async def resume(self) -> None:
        self._paused = False
        self._prefetch, self._finished = self._first, 0
        self._subscribe()

    async def reopen(self) -> None:
        channel = self._channel
        self.detach()
        if channel is not None:
            channel.session.consume_up.send(lambda: self._server.close_channel(channel))
            self.attach(channel.session)

    async def close(self) -> None:
        channel, self._closed = self._channel, True
        self.detach()
        self._arrived.set()
        if channel is not None:
            channel.session.consume_up.send(lambda: self._server.close_channel(channel))
        if self._redeclaring is not None:  # what it has declared exists by then, and can be deleted
            await asyncio.wait({self._redeclaring})

    def attach(self, session: BrokerSession) -> None:
        """Opens a channel on a new connection."""
        if not self._closed:
            if (own := self._own_topology) is not None:
                self._redeclare(own, session)
            channel = self._server.open_channel(session, self._queues, self._delivered)
            channel.cancelled = lambda: self._cancelled(channel)
            channel.allowed = dict(self._allowed)
            self._channel = channel
            self._prefetch, self._finished = self._first, 0
            self._subscribe()

    def _redeclare(self, own_topology: Topology, session: BrokerSession) -> None:
        if self._dynamic_topology is None:
            session.consume_up.send(lambda: self._server.declare(own_topology, session))
        else:
            self._redeclaring = asyncio.create_task(
                self._redeclare_later(own_topology, self._dynamic_topology), name="queues of a memory consumer"
            )

    async def _redeclare_later(self, own_topology: Topology, dynamic_topology: Wanted) -> None:
        with suppress(Unavailable):
            found = [await self._broker.message_count(queue) for queue in self._queues]
            if None in found and not self._closed and await dynamic_topology() and not self._closed:
                await self._broker.declare(own_topology)

    def detach(self) -> None:
        """The channel is lost: its deliveries cannot be settled any more."""
        was_open, self._channel = self._channel is not None, None
        self._inbox.clear()
        self._unfinished.clear()
        for hook in self._lost_hooks if was_open else ():
            hook()

    def _cancelled(self, channel: ServerChannel) -> None:
        """The broker has ended a subscription; the others continue without notice, and it subscribes again."""
        if self._lost_hooks and channel is self._channel:
            self.detach()
            channel.session.consume_up.send(lambda: self._server.close_channel(channel))
            self.attach(channel.session)

    def _subscribe(self) -> None:
        channel, prefetch = self._channel, self._prefetch
        if channel is not None and not self._paused:
            subscribe = self._server.subscribe
            channel.session.consume_up.send(lambda: subscribe(channel, prefetch, self._exclusive))

    def _delivered(self, delivery: Delivery) -> None:
        if self.alive(delivery):
            self._unfinished[delivery.tag] = None
            self._inbox.append(delivery)
            self._arrived.set()

    def _settle(self, deliveries: Sequence[Delivery], *, requeue: bool) -> int:
        tags = [one.tag for one in deliveries if self.alive(one) and one.tag in self._unfinished]
        for tag in tags:
            del self._unfinished[tag]
        if (channel := self._channel) is not None and tags:
            channel.session.consume_up.send(lambda: self._server.settle(channel, tags, requeue))
        return len(tags)
