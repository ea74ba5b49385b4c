"""Memory broker client: implements `port.Broker` over `MemoryServer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Final, TypeVar

from orchestrix import clock
from orchestrix.broker.port import (
    LinkState,
    Outcome,
    Outgoing,
    Published,
    Topology,
    Wanted,
    WantedTopology,
    topology_now,
)
from orchestrix.errors import ConfigError, OrchestrixError, Unavailable
from orchestrix.testing.broker.consumer import MemoryConsumer
from orchestrix.testing.broker.server import BrokerSession, MemoryServer

T = TypeVar("T")
TEND_INTERVAL_S: Final = 10.0
"""Seconds between two declarations of the topology."""
_ANSWER_TIMEOUT_S: Final = 20.0
"""Seconds that a reply may take."""


RECONNECT_MAX_S: Final = 5.0


class MemoryBroker:
    """`port.Broker` of one process. Create it in the process that it belongs to; `disconnect` is called when that
    process is killed. `reconnect_max_s` are the longest seconds between two tries to connect."""

    def __init__(
        self, server: MemoryServer, *, topology: WantedTopology | None = None, reconnect_max_s: float = RECONNECT_MAX_S
    ) -> None:
        self.state = LinkState.DOWN
        self.generation = 0
        self.blocked: str | None = None
        self.problem: str | None = "not connected to the broker yet"
        self.mismatch: str | None = None
        self._server = server
        self._topology, self._reconnect_max_s = topology, reconnect_max_s
        self._context = copy_context()
        self._session: BrokerSession | None = None
        self._up, self._over, self._free = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._free.set()
        self._up_hooks: list[Callable[[int], None]] = []
        self._down_hooks: list[Callable[[int, str], None]] = []
        self._answers: dict[asyncio.Future[Published], None] = {}
        self._calls: dict[asyncio.Future[None], None] = {}
        self._consumers: list[MemoryConsumer] = []
        self._task: asyncio.Task[None] | None = None
        self._refused_until = 0.0

    # The port's methods.

    def on_up(self, hook: Callable[[int], None]) -> None:
        self._up_hooks.append(hook)

    def on_down(self, hook: Callable[[int, str], None]) -> None:
        self._down_hooks.append(hook)

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="memory broker")

    async def wait_connected(self, timeout: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        session = self._session
        self._lost(session, "stopped")
        if session is not None:
            session.consume_up.send(lambda: self._server.drop(session))

    async def publish(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        late = Published(Outcome.UNKNOWN, f"no confirm within {timeout:g} s")
        answers: list[asyncio.Future[Published]] = []
        try:
            async with asyncio.timeout(timeout):
                await self._free.wait()
                session = self._session
                if session is None or self.state is not LinkState.UP:
                    return [Published(Outcome.UNKNOWN, self.problem or "not connected")] * len(messages)
                answers = [self._send(session, message) for message in messages]
                if answers:
                    await asyncio.wait(answers)
        except TimeoutError:
            pass
        finally:
            for answer in answers:
                self._answers.pop(answer, None)
        if not answers:
            return [late] * len(messages)
        return [answer.result() if answer.done() else late for answer in answers]

    async def consume(
        self,
        queues: Sequence[str],
        prefetch: int,
        *,
        exclusive: bool = False,
        own_topology: Topology | None = None,
        dynamic_topology: Wanted | None = None,
    ) -> MemoryConsumer:
        if prefetch < 1:
            raise ConfigError("the prefetch must be at least 1: without a limit the broker sends everything at once")
        self._consumers = [one for one in self._consumers if not one.closed]
        consumer = MemoryConsumer(self, self._server, queues, prefetch, exclusive, own_topology, dynamic_topology)
        self._consumers.append(consumer)
        if self._session is not None and self.state is LinkState.UP:
            consumer.attach(self._session)
        return consumer

    async def declare(self, topology: Topology) -> None:
        session = self._session
        await self._call(lambda: self._server.declare(topology, session))

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        return await self._call(lambda: self._server.count(queue))

    async def delete(self, queue: str) -> None:
        await self._call(lambda: self._server.delete(queue))

    # Faults that a simulation injects.

    def disconnect(self) -> None:
        """The process is killed: its sockets are closed, and part of what it sent is still in transit."""
        if self._session is not None:
            self._session.drop("the process is gone")

    def drop_connections(self, client_after: float, server_after: float) -> None:
        """The network drops the connections; the two ends detect it after so many seconds."""
        if self._session is not None:
            self._session.drop("connection reset by peer", client_after, server_after)

    def refuse_connections(self, seconds: float) -> None:
        """The network drops the connections, and refuses new ones for so many seconds."""
        self._refused_until = clock.monotonic() + seconds
        self.drop_connections(0.0, 0.0)

    # Internals.

    async def ask(self, what: Callable[[], None]) -> None:
        """Runs something on this process's channels, unless the connection is lost first."""
        if self._session is not None:
            with suppress(Unavailable):
                await self._call(what)

    async def _call(self, what: Callable[[], T]) -> T:
        """A request and its reply, over the consuming connection. Raises `Unavailable`, and what `what` raises."""
        session = self._session
        if session is None:
            raise Unavailable(self.problem or "the broker is not connected")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[T | OrchestrixError] = []

        def answer() -> None:
            try:
                answers.append(what())
            except OrchestrixError as refused:
                answers.append(refused)
            session.consume_down.send(lambda: _set(done, None))

        self._calls[done] = None
        session.consume_up.send(answer)
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await done
        except TimeoutError as late:
            raise Unavailable("the broker does not answer") from late
        finally:
            self._calls.pop(done, None)
        (found,) = answers
        if isinstance(found, OrchestrixError):
            raise found
        return found

    def _send(self, session: BrokerSession, message: Outgoing) -> asyncio.Future[Published]:
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self._answers[answer] = None
        take = self._server.publish
        session.publish_up.send(lambda: take(session, message, lambda result: _set(answer, result)))
        return answer

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._connect()
                failures = 0
                await self._check_topology()
            except Unavailable as error:
                self.state, self.problem = LinkState.DOWN, str(error)
            failures += 1
            await asyncio.sleep(clock.uniform(0.05, min(self._reconnect_max_s, 0.1 * 2 ** min(failures, 6))))

    async def _check_topology(self) -> None:
        """Declares the topology at intervals, because parts of it may be deleted, until the connection is lost."""
        while True:
            try:
                async with asyncio.timeout(clock.uniform(0.5, 1.0) * self._check_interval()):
                    await self._over.wait()
                return
            except TimeoutError:
                await self._declare_own()

    def _check_interval(self) -> float:
        """A shorter interval where a queue of its own is missing, which its reader would report."""
        topology = topology_now(self._topology)
        session, queues = self._session, topology.queues if topology else ()
        missing = session and any(one.exclusive and not self._server.owns(session, one.name) for one in queues)
        return 1.0 if missing else TEND_INTERVAL_S

    async def _declare_own(self) -> None:
        if (topology := topology_now(self._topology)) is not None:
            try:
                await self.declare(topology)
                self.mismatch = None
            except ConfigError as wrong:
                self.mismatch = str(wrong)

    async def _connect(self) -> None:
        self.state = LinkState.CONNECTING
        self._over.clear()
        await asyncio.sleep(self._server.delay())
        if clock.monotonic() < self._refused_until:
            raise Unavailable("the broker cannot be reached: no route to host")
        session = self._server.accept(self._context, lambda why: self._lost(session, why), self._alarmed)
        self._session, self.state = session, LinkState.SETUP
        await self._declare_own()
        if self._session is not session:
            raise Unavailable(self.problem or "the connection was lost")
        self.generation += 1
        self.state, self.problem = LinkState.UP, None
        self._up.set()
        for consumer in self._consumers:
            consumer.attach(session)
        for hook in list(self._up_hooks):
            hook(self.generation)

    def _alarmed(self, reason: str | None) -> None:
        self.blocked = reason
        if reason is None:
            self._free.set()
        else:
            self._free.clear()

    def _lost(self, session: BrokerSession | None, reason: str) -> None:
        if session is None or self._session is not session:
            return
        was_up, self._session = self.state is LinkState.UP, None
        self.state, self.problem = LinkState.DOWN, reason
        self._up.clear()
        self._over.set()
        self._alarmed(None)
        for consumer in self._consumers:
            consumer.detach()
        for answer in list(self._answers):
            _set(answer, Published(Outcome.UNKNOWN, reason))
        for call in list(self._calls):
            _refuse(call, Unavailable(reason))
        for hook in list(self._down_hooks) if was_up else ():
            hook(self.generation, reason)


def _set(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _refuse(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
