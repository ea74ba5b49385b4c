"""How does a test cut, freeze or refuse the connections to a broker that others use too, and what does it send?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from yarl import URL

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Binding, Consumer, Delivery, Exchange, Outcome, Outgoing, Published, Queue, Topology
from orchestrix.clock import uuid7

QUORUM = {"x-queue-type": "quorum"}
WORK = Topology(
    exchanges=(Exchange("work", "topic"),),
    queues=(Queue("jobs", QUORUM), Queue("others", QUORUM)),
    bindings=(Binding("jobs", "work", "jobs"), Binding("others", "work", "others")),
)


def message(body: bytes = b"{}", *, key: str = "jobs", exchange: str = "work", id: str = "") -> Outgoing:
    """A message for the queue `jobs`, with a fresh id unless one is given."""
    return Outgoing(exchange=exchange, routing_key=key, body=body, message_id=id or uuid7())


def outcomes(published: Sequence[Published]) -> list[Outcome]:
    """Without the details."""
    return [one.outcome for one in published]


async def fill(broker: AmqpBroker, count: int, key: str = "jobs") -> None:
    """Puts messages with the bodies 0, 1, 2 … into a queue."""
    published = await broker.publish([message(b"%d" % n, key=key) for n in range(count)])
    assert set(outcomes(published)) == {Outcome.CONFIRMED}, published


async def take(consumer: Consumer, count: int, *, acknowledge: bool = True) -> list[Delivery]:
    """The next `count` deliveries, within 10 s."""
    taken: list[Delivery] = []
    async with asyncio.timeout(10):
        while len(taken) < count:
            batch = await consumer.receive(count - len(taken))
            taken += batch
            if acknowledge:
                await consumer.acknowledge(batch)
    return taken


class Proxy:
    """Forwards TCP to the host of `target`, an AMQP URL. `url` is the same address through the proxy."""

    def __init__(self, target: str) -> None:
        self._target = URL(target)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing, self._answering = asyncio.Event(), asyncio.Event()
        self.thaw()

    @property
    def url(self) -> str:
        return str(self._target.with_host("127.0.0.1").with_port(self._port))

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._writers) // 2

    async def start(self) -> None:
        """Listens; on the same port as before, if there was one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuses new connections and cuts the present ones."""
        self.thaw()
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Keeps the connections open and forwards nothing."""
        self._flowing.clear()

    def freeze_answers(self) -> None:
        """Forwards what the clients send, but not what the broker says."""
        self._answering.clear()

    def thaw(self) -> None:
        """Forwards everything again, what has been kept first."""
        self._flowing.set()
        self._answering.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers |= {writer, to_writer}
        for source, target, gate in ((reader, to_writer, self._flowing), (to_reader, writer, self._answering)):
            task = asyncio.create_task(self._pump(source, target, gate))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._flowing.wait()
                await gate.wait()
                target.write(data)
                await target.drain()
        target.close()
        self._writers.discard(target)


class Rig:
    """A broker behind a proxy, and the ports that a test makes to it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.brokers: list[AmqpBroker] = []

    @property
    def url(self) -> str:
        return self.proxy.url

    def make(self, *, heartbeat: int = 10) -> AmqpBroker:
        """A port that is stopped with the test."""
        broker = AmqpBroker(lambda: self.proxy.url, name="test", heartbeat=heartbeat)
        self.brokers.append(broker)
        return broker

    async def up(self, *, heartbeat: int = 10) -> AmqpBroker:
        """One that is connected."""
        broker = self.make(heartbeat=heartbeat)
        await broker.start()
        assert await broker.wait_connected(10), broker.problem
        return broker
