"""How does a broker behave that lives in the test's own memory and breaks when told to?"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrix.broker.port import Delivery, LinkState, Outcome, Outgoing, Published, Topology, Wanted
from orchestrix.broker.probe import UNROUTABLE_KEY
from tests.support import eventually

Judge = Callable[[Outgoing], Published]


@dataclass(slots=True)
class Stored:
    """A message in a queue, and how often it was given out before."""

    body: bytes
    exchange: str
    routing_key: str
    message_id: str | None
    correlation_id: str | None
    type: str | None
    headers: Mapping[str, object]
    count: int = 0
    sent_at: float | None = None
    reply_to: str | None = None


@dataclass(slots=True)
class FakeQueue:
    """A queue: `ready` in order, `unacked` by delivery tag."""

    ready: deque[Stored] = field(default_factory=deque)
    unacked: dict[int, Stored] = field(default_factory=dict)


class FakeConsumer:
    """`port.Consumer` in memory, with a fixed prefetch per queue."""

    def __init__(self, broker: FakeBroker, queues: Sequence[str], prefetch: int) -> None:
        self.queues, self.prefetch, self.paused, self.closed = tuple(queues), prefetch, False, False
        self.session, self.reopened, self.resumed = 1, 0, 0
        self.allowed: dict[str, int] = {}
        self.grown = 0
        self._broker = broker
        self._inbox: deque[Delivery] = deque()
        self._arrived = asyncio.Event()

    @property
    def unread(self) -> Sequence[str]:
        return self.queues if self.closed else ()

    async def receive(self, limit: int, linger: float = 0.0) -> list[Delivery]:
        while not self._inbox and not self.closed:
            self._arrived.clear()
            await self._arrived.wait()
        return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    async def acknowledge(self, deliveries: Sequence[Delivery], *, grow: bool = True) -> None:
        for one in filter(self.alive, deliveries):
            del self._broker.queue(one.queue).unacked[one.tag]
        self._broker.pump()

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        for one in filter(self.alive, deliveries):
            self._broker.requeue(one.queue, one.tag)
        self._broker.pump()

    def alive(self, delivery: Delivery) -> bool:
        return delivery.session == self.session and not self.closed

    def grow(self) -> None:
        self.grown += 1

    def allow(self, queue: str, limit: int) -> None:
        self.allowed[queue] = limit
        self._broker.pump()

    def on_channel_lost(self, hook: Callable[[], None]) -> None:
        """Nobody asks."""

    def also_read(self, queues: Sequence[str]) -> None:
        self.queues = tuple(dict.fromkeys((*self.queues, *queues)))
        self._broker.pump()

    async def pause(self) -> None:
        self.paused = True

    async def resume(self) -> None:
        self.paused = False
        self.resumed += 1
        self._broker.pump()

    async def reopen(self) -> None:
        self.reopened += 1
        self.lose_channel()

    async def close(self) -> None:
        self.lose_channel()
        self.closed = True
        self._arrived.set()

    def lose_channel(self) -> None:
        """What is unfinished goes back, marked as redelivered, and comes again by a new channel."""
        self.session += 1
        self._inbox.clear()
        for name in self.queues:
            for tag in sorted(self._broker.queue(name).unacked, reverse=True):
                self._broker.requeue(name, tag)
        self._broker.pump()

    def pump(self) -> None:
        """Takes from its queues what the prefetch allows."""
        for name in self.queues:
            queue = self._broker.queue(name)
            most = min(self.prefetch, self.allowed.get(name, self.prefetch))
            while queue.ready and len(queue.unacked) < most and not (self.paused or self.closed):
                self._take(name, queue)

    def _take(self, name: str, queue: FakeQueue) -> None:
        stored, tag = queue.ready.popleft(), next(self._broker.tags)
        queue.unacked[tag] = stored
        self._inbox.append(
            Delivery(
                body=stored.body,
                queue=name,
                exchange=stored.exchange,
                routing_key=stored.routing_key,
                message_id=stored.message_id,
                correlation_id=stored.correlation_id,
                type=stored.type,
                headers=stored.headers,
                redelivered=stored.count > 0,
                delivery_count=stored.count,
                tag=tag,
                session=self.session,
                sent_at=stored.sent_at,
                reply_to=stored.reply_to,
            )
        )
        self._arrived.set()


class FakeBroker:
    """`port.Broker` in memory, for one consumer.

    `published` are the confirmed messages. `judge` may decide about a message instead; `batches` counts publishes.
    """

    def __init__(self) -> None:
        self.state, self.generation = LinkState.UP, 1
        self.blocked: str | None = None
        self.mismatch: str | None = None
        self.problem: str | None = None
        self.published: list[Outgoing] = []
        self.tried: list[Outgoing] = []
        self.batches: list[int] = []
        self.judge: Judge | None = None
        self.declared = 0
        self.tags = itertools.count(1)
        self.consumers: list[FakeConsumer] = []
        self._queues: dict[str, FakeQueue] = {}
        self._up = asyncio.Event()
        self._up.set()

    # What the port asks for.

    def on_up(self, hook: Callable[[int], None]) -> None:
        """Nobody asks."""

    def on_down(self, hook: Callable[[int, str], None]) -> None:
        """Nobody asks."""

    async def start(self) -> None:
        """It is always there."""

    async def stop(self) -> None:
        for consumer in self.consumers:
            await consumer.close()

    async def wait_connected(self, timeout: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    async def publish(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        if messages and messages[0].routing_key == UNROUTABLE_KEY:
            return [Published(Outcome.RETURNED)]
        self.batches.append(len(messages))
        await asyncio.sleep(0)
        return [self._publish(message) for message in messages]

    async def consume(
        self,
        queues: Sequence[str],
        prefetch: int,
        *,
        exclusive: bool = False,
        own_topology: Topology | None = None,
        dynamic_topology: Wanted | None = None,
    ) -> FakeConsumer:
        consumer = FakeConsumer(self, queues, prefetch)
        self.consumers.append(consumer)
        self.pump()
        return consumer

    async def declare(self, topology: Topology) -> None:
        self.declared += 1

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        return len(self.queue(queue).ready), len(self.consumers)

    async def delete(self, queue: str) -> None:
        self._queues.pop(queue, None)

    # What a test does to it.

    def put(self, queue: str, body: bytes, **more: object) -> None:
        """Puts a message into a queue, as if it had been routed there. `more` are fields of `Stored`."""
        fresh = Stored(body, "orchestrator.commands", queue, None, None, None, {})
        self.queue(queue).ready.append(replace(fresh, **more))  # type: ignore[arg-type]
        self.pump()

    def go_down(self) -> None:
        """The link is lost: nothing can be published, and unfinished deliveries go back."""
        self.state, self.problem = LinkState.DOWN, "the test pulled the plug"
        self._up.clear()
        for consumer in self.consumers:
            consumer.lose_channel()

    def come_up(self) -> None:
        """The link is there again."""
        self.state, self.problem, self.generation = LinkState.UP, None, self.generation + 1
        self._up.set()
        self.pump()

    def events(self, routing_key: str) -> list[Outgoing]:
        """The confirmed messages with that routing key."""
        return [message for message in self.published if message.routing_key == routing_key]

    async def settled(self, *queues: str) -> None:
        """Waits until the queues are empty and nothing of them is unfinished."""
        await eventually(lambda: all(self._is_empty(name) for name in queues), deadline=5.0, message=f"{queues} empty")

    # Its own works.

    def queue(self, name: str) -> FakeQueue:
        """The queue of that name, which is made when first asked for."""
        return self._queues.setdefault(name, FakeQueue())

    def requeue(self, name: str, tag: int) -> None:
        """An unfinished message goes back to the front."""
        stored = self.queue(name).unacked.pop(tag)
        stored.count += 1
        self.queue(name).ready.appendleft(stored)

    def pump(self) -> None:
        """Gives out what can be given out."""
        if self.state is LinkState.UP:
            for consumer in self.consumers:
                consumer.pump()

    def _is_empty(self, name: str) -> bool:
        return not self.queue(name).ready and not self.queue(name).unacked

    def _publish(self, message: Outgoing) -> Published:
        self.tried.append(message)
        if self.state is not LinkState.UP:
            return Published(Outcome.UNKNOWN, "not connected")
        result = self.judge(message) if self.judge else Published(Outcome.CONFIRMED)
        if result.outcome is Outcome.CONFIRMED:
            self.published.append(message)
            if not message.exchange:
                self._to_queue(message)
        return result

    def _to_queue(self, message: Outgoing) -> None:
        """By the default exchange."""
        sent_at = None if message.timestamp is None else message.timestamp.timestamp()
        more = {"message_id": message.message_id, "headers": dict(message.headers), "sent_at": sent_at}
        more["reply_to"] = message.reply_to
        self.put(message.routing_key, message.body, exchange="", correlation_id=message.correlation_id, **more)
