"""AMQP broker: the broker port over AMQP 0-9-1, for RabbitMQ and the embedded broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from orchestrix import clock
from orchestrix.broker.amqp import declarations as admin
from orchestrix.broker.amqp import permission_probe
from orchestrix.broker.amqp.connection import AmqpConnection
from orchestrix.broker.amqp.consumer import AmqpConsumer
from orchestrix.broker.amqp.publisher import AmqpPublisher
from orchestrix.broker.amqp.supervisor import RECONNECT_MAX_S, AmqpSession, ConnectionSupervisor
from orchestrix.broker.message_metrics import published, watch_link
from orchestrix.broker.port import (
    Consumer,
    LinkState,
    Outcome,
    Outgoing,
    Published,
    Topology,
    Wanted,
    WantedTopology,
    topology_now,
)
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.lifecycle import Loop, WakeSignal

log = logging.getLogger("orchestrix.broker")

TOPOLOGY_CHECK_INTERVAL_S: Final = 10.0
"""Seconds between two checks that the topology is still there: the lost binding of an event is not reported
otherwise.
"""
TOPOLOGY_CHECK_MIN_INTERVAL_S: Final = 1.0


class AmqpBroker:
    """`port.Broker` for RabbitMQ and the embedded broker.

    `url` may name several hosts (`amqp://user:password@a,b:5673/vhost`) and may be a callable, which is then asked
    before every connect. `name` shows in the broker's list of connections, and in logs where there is no `log_name`.
    `heartbeat` is in seconds; `reconnect_max_s` are the longest seconds between two tries to connect.
    `topology`, or what it returns, is declared at each connect before the link counts as UP, again every ten seconds,
    and at once when a subscription misses its queue. Declares and look-ups run on the consuming connection, which an
    alarm of the broker does not block.
    """

    def __init__(
        self,
        url: str | Callable[[], str],
        *,
        name: str,
        heartbeat: int = 10,
        topology: WantedTopology | None = None,
        log_name: str | None = None,
        reconnect_max_s: float = RECONNECT_MAX_S,
    ) -> None:
        ask = url if callable(url) else lambda: url
        self._publisher = AmqpPublisher()
        self._supervisor = ConnectionSupervisor(ask, name, heartbeat, self._set_up, log_name, reconnect_max_s)
        self._topology = topology
        self._mismatch: str | None = None
        self._consumers: list[AmqpConsumer] = []
        self._queue_missing = WakeSignal()
        self._topology_loop = Loop("topology", self._check_topology)
        self._unwatch: Callable[[], None] = lambda: None

    async def _set_up(self, session: AmqpSession) -> None:
        await self._publisher.attach(session.publish)
        if (topology := topology_now(self._topology)) is not None:
            await self._declare(session.consume, topology)

    async def _declare(self, link: AmqpConnection, topology: Topology) -> None:
        """What exists with other arguments is left as it is and reported; the rest is declared all the same."""
        try:
            await admin.declare(link, topology)
            self._mismatch = None
        except ConfigError as wrong:
            if str(wrong) != self._mismatch:
                log.error("%s", wrong)
            self._mismatch = str(wrong)

    async def _check_topology(self) -> None:
        await asyncio.sleep(TOPOLOGY_CHECK_MIN_INTERVAL_S)
        await self._queue_missing.wait(clock.uniform(0.5, 1.0) * TOPOLOGY_CHECK_INTERVAL_S)
        if (topology := topology_now(self._topology)) is not None:
            await self._declare((await self._supervisor.session()).consume, topology)

    @property
    def mismatch(self) -> str | None:
        return self._mismatch

    @property
    def state(self) -> LinkState:
        return self._supervisor.state

    @property
    def generation(self) -> int:
        return self._supervisor.generation

    @property
    def blocked(self) -> str | None:
        try:
            return self._supervisor.current().publish.blocked
        except Unavailable:
            return None

    @property
    def problem(self) -> str | None:
        return self._supervisor.problem

    def on_up(self, hook: Callable[[int], None]) -> None:
        self._supervisor.up_hooks.append(hook)

    def on_down(self, hook: Callable[[int, str], None]) -> None:
        self._supervisor.down_hooks.append(hook)

    async def start(self) -> None:
        self._supervisor.start()
        self._unwatch()
        self._unwatch = watch_link(lambda: self.state, lambda: self.blocked is not None)
        await self._topology_loop.start()

    async def wait_connected(self, timeout: float | None = None) -> bool:
        return await self._supervisor.wait_connected(timeout)

    async def stop(self) -> None:
        await self._topology_loop.stop()
        await asyncio.gather(*(consumer.close() for consumer in self._consumers))
        self._consumers.clear()
        await self._supervisor.stop()
        self._unwatch()

    async def publish(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        if self.state is not LinkState.UP:
            return [Published(Outcome.UNKNOWN, self.problem or "not connected to the broker")] * len(messages)
        began = clock.monotonic()
        results = await self._publisher.publish(messages, timeout)
        published(messages, results, clock.monotonic() - began)
        return results

    async def consume(
        self,
        queues: Sequence[str],
        prefetch: int,
        *,
        exclusive: bool = False,
        own_topology: Topology | None = None,
        dynamic_topology: Wanted | None = None,
    ) -> Consumer:
        if prefetch < 1:
            raise ConfigError("the prefetch must be at least 1: without a limit the broker sends everything at once")
        for queue in queues:
            admin.check_name(queue)
        self._consumers = [one for one in self._consumers if not one.closed]
        consumer = AmqpConsumer(
            self._consume_link, queues, prefetch, exclusive, self._queue_missing.set, own_topology, dynamic_topology
        )
        self._consumers.append(consumer)
        consumer.start()
        return consumer

    async def _consume_link(self) -> AmqpConnection:
        return (await self._supervisor.session()).consume

    async def declare(self, topology: Topology) -> None:
        await admin.declare(self._supervisor.current().consume, topology)

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        return await admin.count(self._supervisor.current().consume, queue)

    async def delete(self, queue: str) -> None:
        await admin.delete(self._supervisor.current().consume, queue)

    async def refusals(self, queues: Sequence[str], exchanges: Sequence[str], source: str) -> list[str]:
        """What RabbitMQ's user may not do; see `permission_probe.refusals`."""
        return await permission_probe.refusals(self._supervisor.current().consume, queues, exchanges, source)
