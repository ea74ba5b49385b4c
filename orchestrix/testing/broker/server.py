"""Memory server: a broker in memory, on virtual time, that can inject every fault of a real one.

The processes of a simulation share a `MemoryServer`; each reaches it by a `client.MemoryBroker` of its own. A queue
keeps its order in every case; between queues and between connections there is none.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from orchestrix.broker.port import Delivery, Exchange, Outcome, Outgoing, Published, Queue, Topology
from orchestrix.broker.topology import EVENTS
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.testing.broker.network import MIN_GAP_S, NetworkLink
from orchestrix.testing.broker.queues import MemoryQueue, StoredMessage, delivered, fits, stored
from orchestrix.testing.simulation.rng import Rng
from orchestrix.testing.simulation.virtual_time import outside_context

MAX_MESSAGE: Final = 16 * 2**20
"""Bytes in a body, as RabbitMQ 4 has it."""

CONFIRMED: Final = Published(Outcome.CONFIRMED)
NO_QUEUE: Final = Published(Outcome.RETURNED, "312 NO_ROUTE")


class BrokerObserver(Protocol):
    """Observes what is published and acknowledged."""

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        """The broker has accepted a message, and routed it to these queues."""

    def acknowledging(self, delivery: Delivery) -> None:
        """A client acknowledges a delivery; whether that reaches the broker is open."""


@dataclass(slots=True, eq=False)
class ServerChannel:
    """A consumer's channel as the broker sees it. `prefetch` is per queue, `place` its position among the consumers.

    `cancelled` is called at the client when a queue that it reads is deleted.
    """

    session: BrokerSession
    queues: tuple[str, ...]
    deliver: Callable[[Delivery], None]
    number: int
    exclusive: bool = False
    prefetch: int = 1
    paused: bool = False
    place: int = 0
    cancelled: Callable[[], None] = lambda: None
    unacked: dict[int, tuple[str, StoredMessage]] = field(default_factory=dict)
    unacked_in: Counter[str] = field(default_factory=Counter)
    allowed: dict[str, int] = field(default_factory=dict)

    def has_room(self, queue: str) -> bool:
        """Whether the prefetch allows one more of the queue."""
        return not self.paused and self.unacked_in[queue] < min(self.prefetch, self.allowed.get(queue, self.prefetch))


class BrokerSession:
    """The two connections of one client: to the broker and from it, for publishing and for consuming."""

    def __init__(self, server: MemoryServer, client: Context, lost: Callable[[str], None]) -> None:
        self._server = server
        self._client = client
        self._lost = lost
        self.is_open = True
        self.channels: dict[ServerChannel, None] = {}
        pipe = [NetworkLink(receiver, server.delay, server.rng) for receiver in (server.context, client) * 2]
        self.publish_up, self.publish_down, self.consume_up, self.consume_down = pipe

    def drop(self, reason: str, client_after: float = 0.0, server_after: float = 0.0) -> None:
        """No more bytes pass. The two ends detect it after so many seconds."""
        for pipe in (self.publish_up, self.publish_down, self.consume_up, self.consume_down):
            pipe.truncate()
        loop = asyncio.get_running_loop()
        # What was in transit at the cut and still arrives comes before the notice of the cut.
        late = 2 * MIN_GAP_S + max(pipe.last for pipe in (self.publish_up, self.consume_up)) - loop.time()
        loop.call_later(client_after, self._lost, reason, context=self._client)
        loop.call_later(max(server_after, late), self._server.drop, self, context=self._server.context)


class MemoryServer:
    """The broker.

    `delay` gives the seconds that bytes are in transit; `held_back` for how long a message is not visible in a queue
    yet; `copied_after` whether, and after how many seconds, a second copy of a message is enqueued. A message that was
    requeued more than `delivery_limit` times is dead-lettered.
    """

    def __init__(self, rng: Rng, *, delay: Callable[[], float] = lambda: 0.0, delivery_limit: int | None = 20) -> None:
        self.rng = rng
        self.delay = delay
        self.delivery_limit = delivery_limit
        self.held_back: Callable[[str], float] = lambda queue: 0.0
        self.copied_after: Callable[[str], float | None] = lambda queue: None
        self.context = outside_context()
        self.up = True
        self.alarm: str | None = None
        self.observers: list[BrokerObserver] = []
        self.dropped_answers: set[str] = set()
        """The ids of commands whose events are lost after their confirm."""
        self.sessions: dict[BrokerSession, Callable[[str | None], None]] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._queues: dict[str, MemoryQueue] = {}
        self._bindings: dict[str, list[tuple[str, str]]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._tags = itertools.count(1)
        self._channels, self._places = itertools.count(1), itertools.count(1)

    # Faults that a simulation injects.

    def stop(self, reason: str = "CONNECTION_FORCED - broker forced connection closure") -> None:
        """Stops. The content of durable queues stays."""
        self.up = False
        self.alarm = None
        self._waiting.clear()
        for session in list(self.sessions):
            session.drop(reason)
            self.drop(session)

    def start(self) -> None:
        """Starts again."""
        self.up = True

    def forget(self) -> None:
        """Loses all state: queues, exchanges, bindings, messages."""
        for name in list(self._queues):
            self.delete(name)
        self._exchanges.clear()
        self._queues.clear()
        self._bindings.clear()

    def raise_alarm(self, reason: str) -> None:
        """Blocks publishers, and notifies them; messages that arrive all the same wait."""
        self.alarm = reason
        self._notify_sessions()

    def clear_alarm(self) -> None:
        """Accepts messages again, first those that wait."""
        self.alarm = None
        self._notify_sessions()
        waiting, self._waiting = self._waiting, []
        for publish in waiting:
            publish()

    def put(self, queue: str, message: Outgoing) -> None:
        """Publishes to a queue as another client."""
        self._append(queue, stored(message))

    def delete(self, queue: str) -> None:
        """Deletes the queue with its messages; a missing one is no error."""
        if self._queues.pop(queue, None) is None:
            return
        for bound in self._bindings.values():
            bound[:] = [(key, name) for key, name in bound if name != queue]
        for channel in self._consumers(queue):
            for tag in [tag for tag, (name, _) in channel.unacked.items() if name == queue]:
                self._release(channel, tag)
            channel.session.consume_down.send(channel.cancelled)

    def depth(self, queue: str) -> int:
        """How many messages are in the queue, including unacknowledged ones."""
        unacked = sum(channel.unacked_in[queue] for session in self.sessions for channel in session.channels)
        return unacked + (len(self._queues[queue].ready) if queue in self._queues else 0)

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of all queues."""
        return tuple(self._queues)

    # Requests of clients; called when their bytes have arrived.

    def accept(
        self, client: Context, lost: Callable[[str], None], alarmed: Callable[[str | None], None]
    ) -> BrokerSession:
        """A new session; `lost` and `alarmed` notify the client. Raises `Unavailable`."""
        if not self.up:
            raise Unavailable("the broker cannot be reached: connection refused")
        session = BrokerSession(self, client, lost)
        self.sessions[session] = alarmed
        if self.alarm:
            alarmed(self.alarm)
        return session

    def drop(self, session: BrokerSession) -> None:
        """The session is over: what its consumers held is requeued, and its exclusive queues are deleted."""
        if session.is_open:
            session.is_open = False
            self.sessions.pop(session, None)
            for channel in list(session.channels):
                self.close_channel(channel)
            for name in [name for name, queue in self._queues.items() if queue.owner is session]:
                self.delete(name)

    def publish(self, session: BrokerSession, message: Outgoing, answer: Callable[[Published], None]) -> None:
        """Routes a message; the result is returned over the session."""
        if not session.is_open:
            return
        if self.alarm:
            self._waiting.append(lambda: self.publish(session, message, answer))
            return
        result = self._take(message)
        session.publish_down.send(lambda: answer(result))

    def open_channel(
        self, session: BrokerSession, queues: Sequence[str], deliver: Callable[[Delivery], None]
    ) -> ServerChannel:
        """A channel of a consumer; nothing is delivered before `subscribe`."""
        return ServerChannel(session, tuple(queues), deliver, next(self._channels))

    def subscribe(self, channel: ServerChannel, prefetch: int, exclusive: bool) -> None:
        """Delivers up to `prefetch` unacknowledged messages of each of its queues to the channel."""
        if channel.session.is_open:
            channel.prefetch, channel.exclusive, channel.paused = prefetch, exclusive, False
            channel.place = channel.place or next(self._places)
            channel.session.channels[channel] = None
            self._pump_all(channel)

    def allow(self, channel: ServerChannel, queue: str, limit: int) -> None:
        """Limits the channel to so many unacknowledged messages of the queue."""
        channel.allowed[queue] = limit
        self._pump(queue)

    def pause(self, channel: ServerChannel) -> None:
        """Stops deliveries to the channel, which keeps what it has."""
        channel.paused = True

    def close_channel(self, channel: ServerChannel) -> None:
        """Requeues what the channel holds at the front of its queues."""
        channel.session.channels.pop(channel, None)
        self._requeue(channel, list(channel.unacked))
        self._pump_all(channel)

    def settle(self, channel: ServerChannel, tags: Sequence[int], requeue: bool) -> None:
        """Acknowledges or requeues the deliveries."""
        if channel not in channel.session.channels:
            return
        if requeue:
            self._requeue(channel, tags)
        for tag in tags:
            self._release(channel, tag)
        self._pump_all(channel)

    def owns(self, session: BrokerSession, queue: str) -> bool:
        """Whether the exclusive queue exists and belongs to the session."""
        return queue in self._queues and self._queues[queue].owner is session

    def declare(self, topology: Topology, session: BrokerSession | None = None) -> None:
        """Declares a topology. Raises `ConfigError` that names what exists with other arguments.

        An exclusive queue belongs to `session`; one that another session still owns is left to it.
        """
        exchanges, queues = self._exchanges, self._queues
        wrong = [f"exchange {e.name}" for e in topology.exchanges if exchanges.setdefault(e.name, e) != e]
        for queue in topology.queues:
            made = MemoryQueue(queue, owner=session if queue.exclusive else None)
            if queues.setdefault(queue.name, made).declared != queue:
                wrong.append(f"queue {queue.name}")
        for binding in topology.bindings:
            bound = self._bindings.setdefault(binding.exchange, [])
            if (binding.routing_key, binding.queue) not in bound:
                bound.append((binding.routing_key, binding.queue))
        for queue in topology.queues:
            self._pump(queue.name)
        if wrong:
            raise ConfigError(f"PRECONDITION_FAILED: {', '.join(wrong)}")

    def count(self, queue: str) -> tuple[int, int] | None:
        """(messages ready, consumers), or None."""
        found = self._queues.get(queue)
        return (len(found.ready), len(self._consumers(queue))) if found else None

    # Internals.

    def _notify_sessions(self) -> None:
        for session, alarmed in self.sessions.items():
            session.publish_down.send(partial(alarmed, self.alarm))

    def _take(self, message: Outgoing) -> Published:
        if len(message.body) > MAX_MESSAGE:
            return Published(Outcome.REFUSED, f"message size {len(message.body)} is larger than {MAX_MESSAGE}")
        if message.exchange and message.exchange not in self._exchanges:
            return Published(Outcome.RETURNED, f"404 NOT_FOUND - no exchange '{message.exchange}'", channel_closed=True)
        queues = self._route(message.exchange, message.routing_key)
        if (
            self.dropped_answers
            and message.exchange == EVENTS
            and json.loads(message.body).get("causationId") in self.dropped_answers
        ):
            return CONFIRMED
        for tap in self.observers:
            tap.published(message, queues)
        for queue in queues:
            self._append(queue, stored(message))
            if (after := self.copied_after(queue)) is not None:
                copy = stored(message)
                asyncio.get_running_loop().call_later(after, self._append, queue, copy, context=self.context)
        return CONFIRMED if queues else NO_QUEUE

    def _route(self, exchange: str, key: str) -> tuple[str, ...]:
        if not exchange:
            return (key,) if key in self._queues else ()
        declared = self._exchanges.get(exchange)
        if declared is None:
            return ()
        bound = self._bindings.get(exchange, ())
        found = tuple(dict.fromkeys(queue for pattern, queue in bound if fits(declared.kind, pattern, key)))
        alternate = declared.arguments.get("alternate-exchange")
        return found or (self._route(str(alternate), key) if alternate else ())

    def _append(self, name: str, stored: StoredMessage) -> None:
        queue = self._queues.get(name)
        if queue is None:
            return
        loop = asyncio.get_running_loop()
        queue.ready_at = max(queue.ready_at + MIN_GAP_S, loop.time() + self.held_back(name))
        if queue.ready_at <= loop.time() + MIN_GAP_S:
            self._show(name, queue, stored)
        else:
            loop.call_at(queue.ready_at, self._show, name, queue, stored, context=self.context)

    def _show(self, name: str, queue: MemoryQueue, stored: StoredMessage) -> None:
        if self._queues.get(name) is queue:
            queue.ready.append(stored)
            self._pump(name)

    def _consumers(self, queue: str) -> list[ServerChannel]:
        return [one for session in self.sessions for one in session.channels if queue in one.queues]

    def _pump_all(self, channel: ServerChannel) -> None:
        for queue in channel.queues:
            self._pump(queue)

    def _pump(self, name: str) -> None:
        queue = self._queues.get(name)
        while queue is not None and queue.ready:
            consumers = self._consumers(name)
            if queue.single:
                consumers = [min(consumers, key=lambda one: one.place)] if consumers else []
            elif any(one.exclusive for one in consumers):
                consumers = consumers[:1]
            free = [one for one in consumers if one.has_room(name)]
            if not free:
                return
            queue.next_consumer += 1
            self._deliver(name, queue.ready.popleft(), free[queue.next_consumer % len(free)])

    def _deliver(self, queue: str, stored: StoredMessage, channel: ServerChannel) -> None:
        tag = next(self._tags)
        channel.unacked[tag] = queue, stored
        channel.unacked_in[queue] += 1
        delivery = delivered(stored, queue, tag, channel.number)
        channel.session.consume_down.send(lambda: channel.deliver(delivery))

    def _release(self, channel: ServerChannel, tag: int) -> tuple[str, StoredMessage] | None:
        if (found := channel.unacked.pop(tag, None)) is not None:
            channel.unacked_in[found[0]] -= 1
        return found

    def _requeue(self, channel: ServerChannel, tags: Sequence[int]) -> None:
        for tag in sorted(tags, reverse=True):
            if (found := self._release(channel, tag)) is None or found[0] not in self._queues:
                continue
            name, stored = found
            stored.count, stored.redelivered = stored.count + 1, True
            if self.delivery_limit is not None and stored.count > self.delivery_limit:
                self._dead_letter(self._queues[name].declared, stored)
            else:
                self._queues[name].ready.appendleft(stored)

    def _dead_letter(self, queue: Queue, stored: StoredMessage) -> None:
        exchange = queue.arguments.get("x-dead-letter-exchange")
        key = str(queue.arguments.get("x-dead-letter-routing-key", stored.routing_key))
        reason = {"x-first-death-reason": "delivery_limit", "x-first-death-queue": queue.name}
        for name in self._route(str(exchange), key) if exchange is not None else ():
            self._append(name, replace(stored, count=0, redelivered=False, headers={**stored.headers, **reason}))
