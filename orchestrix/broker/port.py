"""Broker port: what the library needs of a message broker; everything comes in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final, Protocol

Headers = Mapping[str, str | int]
CONNECTION: Final = ":connection:"
"""Placeholder in the name of an exclusive queue for an id that is new with each connection: so a connection whose loss
the broker has not noticed yet keeps no other from a queue of its own."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish: persistent, mandatory, `application/json`.

    `reply_to` names the queue for the answers, at most 255 bytes; `CONNECTION` in it is as in the name of a queue that
    is declared over the same `Broker`.
    """

    exchange: str
    routing_key: str
    body: bytes
    message_id: str
    correlation_id: str | None = None
    type: str | None = None
    timestamp: datetime | None = None
    headers: Headers = field(default_factory=dict)
    reply_to: str | None = None


class Outcome(Enum):
    """What became of a published message."""

    CONFIRMED = "confirmed"
    """The broker has it."""
    RETURNED = "returned"
    """No queue is bound for it: declare the topology, then send again."""
    REFUSED = "refused"
    """This very message cannot be sent (too large, a name too long, a bad header). Sending it again cannot help."""
    UNKNOWN = "unknown"
    """The connection or the channel was lost, or the confirm is late: it may or may not arrive. Send it again later."""


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome for one message, with the broker's or the client's own reason where it was not confirmed.

    `channel_closed` says that an error of the broker closed the channel while this message was in flight, so that one
    of the messages of this batch is the cause: send them again one by one.
    """

    outcome: Outcome
    detail: str = ""
    channel_closed: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received message. `tag` is its delivery tag, `session` counts the channels of its consumer.

    `delivery_count` is RabbitMQ's `x-delivery-count`: how often it was requeued or lost before (0 at first).
    Text that is not UTF-8 is decoded with replacement; the body is left as it came. `sent_at` is the sender's property
    `timestamp`, in seconds since 1970 by its own clock; None if it has none. `reply_to` is the sender's word: whoever
    answers decides whether it may name that queue.
    """

    body: bytes
    queue: str
    exchange: str
    routing_key: str
    message_id: str | None
    correlation_id: str | None
    type: str | None
    headers: Mapping[str, object]
    redelivered: bool
    delivery_count: int
    tag: int
    session: int
    sent_at: float | None = None
    reply_to: str | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue, or one that lives with the connection (`exclusive`).

    One whose name was never given to another is `unique`: it need not be looked for before it is made.
    """

    name: str
    arguments: Mapping[str, str | int | bool] = field(default_factory=dict)
    exclusive: bool = False
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. `kind` is `direct`, `topic` or `fanout`."""

    name: str
    kind: str
    arguments: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Binding:
    """Messages of `exchange` with `routing_key` go to `queue`."""

    queue: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues and bindings as data; declaring it twice changes nothing."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def __add__(self, other: Topology) -> Topology:
        return Topology(self.exchanges + other.exchanges, self.queues + other.queues, self.bindings + other.bindings)


WantedTopology = Topology | Callable[[], Topology]
"""A topology, or a function called each time it is declared: that of sagas grows with the versions that are read."""


def topology_now(wanted: WantedTopology | None) -> Topology | None:
    """What is to be declared now."""
    return wanted() if callable(wanted) else wanted


class LinkState(Enum):
    """The states of the connection to the broker."""

    DOWN = "down"
    CONNECTING = "connecting"
    SETUP = "setup"
    UP = "up"
    CLOSING = "closing"


Wanted = Callable[[], Awaitable[bool]]


class Consumer(Protocol):
    """One channel that reads one or more queues, over every reconnect.

    It starts with a prefetch of 1 and multiplies it, up to the limit, as messages are finished (`acknowledge`), and
    starts small again after each lost channel: a message that crashes its reader is then alone.
    """

    @property
    def unread(self) -> Sequence[str]:
        """Those of its queues that it does not read now, though it would: without a channel all of them, else those
        that do not exist or whose subscription has ended. Empty while it is paused.
        """

    async def receive(self, limit: int, linger: float = 0.0) -> list[Delivery]:
        """Waits for at least one delivery, then takes what is there: up to `limit`, for at most `linger` seconds more.

        A reconnect in between is invisible. Returns an empty list when the consumer is closed.
        """

    async def acknowledge(self, deliveries: Sequence[Delivery], *, grow: bool = True) -> None:
        """The deliveries are finished. Those of a lost channel are passed over: the broker redelivers them.

        A finished prefix of the channel goes as one multiple-ack; the others one by one. Never blocks on a lost link.
        Without `grow` the prefetch does not rise by them.
        """

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        """The deliveries go back to their queues (`basic.nack`, requeue), where they count as redelivered."""

    def alive(self, delivery: Delivery) -> bool:
        """Whether the channel that brought the delivery is still open, so that an ack can reach the broker."""

    def on_channel_lost(self, hook: Callable[[], None]) -> None:
        """`hook()` is called at once when a channel has ended, for whatever reason: its deliveries are void.

        A subscription that the broker ends counts as such an end, and a new channel is opened then. Must not block.
        """

    def grow(self) -> None:
        """The prefetch rises one step, as if all that it allows had been finished. Returns at once."""

    def allow(self, queue: str, limit: int) -> None:
        """At most so many deliveries of the queue are to be unacked from now on, 0 for none; never more than the
        prefetch. Returns at once; what was delivered stays. A smaller number costs round trips: let the change last.
        """

    def also_read(self, queues: Sequence[str]) -> None:
        """From now on it reads these queues too; those that it reads already change nothing. Returns at once."""

    async def pause(self) -> None:
        """Take nothing new, keep what was delivered: cancels the subscription, leaves the channel open."""

    async def resume(self) -> None:
        """Undoes `pause`; starts with a prefetch of 1 again."""

    async def reopen(self) -> None:
        """Closes the channel, which requeues all that is unfinished, and opens a new one."""

    async def close(self) -> None:
        """Closes the channel; what is unfinished goes back to its queues. `receive` returns an empty list."""


class Broker(Protocol):
    """A connection to a broker that reconnects by itself: one link for publishing, one for consuming."""

    @property
    def state(self) -> LinkState:
        """UP only when both links are."""

    @property
    def generation(self) -> int:
        """Rises by one at each successful connect."""

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no publishes at the moment (its alarm's text), else None.

        A connection that has not published since the alarm began does not learn of it: see `probe.takes_messages`.
        """

    @property
    def problem(self) -> str | None:
        """Why the link is not UP, in one sentence without secrets, else None."""

    @property
    def mismatch(self) -> str | None:
        """Which queues and exchanges of the product's own topology exist with other arguments, else None."""

    def on_up(self, hook: Callable[[int], None]) -> None:
        """`hook(generation)` is called in the loop each time that both links have come up. Must not block."""

    def on_down(self, hook: Callable[[int, str], None]) -> None:
        """`hook(generation, reason)` is called at once when a link is lost. Must not block."""

    async def start(self) -> None:
        """Begins to connect in the background and returns at once; an unreachable broker is no error."""

    async def wait_connected(self, timeout: float | None = None) -> bool:
        """Waits until UP; False when `timeout` seconds have passed."""

    async def stop(self) -> None:
        """Closes every consumer, then both links. Waits at most 5 s."""

    async def publish(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        """Sends all, with every confirm in flight at once, and waits up to `timeout` seconds for them.

        One result per message, in order; never raises for a message or a lost link. While the link is down it answers
        UNKNOWN at once. A result that comes late is UNKNOWN: the message may still arrive.
        """

    async def consume(
        self,
        queues: Sequence[str],
        prefetch: int,
        *,
        exclusive: bool = False,
        own_topology: Topology | None = None,
        dynamic_topology: Wanted | None = None,
    ) -> Consumer:
        """A consumer of the queues on a channel of its own; `prefetch` ≥ 1 is the limit per queue.

        Works while the link is down; a missing queue is tried again until it is there. With `own_topology`, which has
        the queues, it is declared where one is missing, and the consumer begins with its whole prefetch: a queue with a
        single active consumer serves no other subscription of the channel. `dynamic_topology`
        is asked before that, each time: a queue that is missing may have been deleted for good. `exclusive` is for
        queues that are no quorum queues: at those RabbitMQ may let a second consumer in.
        """

    async def declare(self, topology: Topology) -> None:
        """Declares what is missing. Raises `Unavailable` (broker away), or `ConfigError` that names the queue or
        exchange that exists with other arguments; that one is left as it is."""

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        """(messages ready, consumers) by a passive declare; None if there is no such queue. Raises `Unavailable`."""

    async def delete(self, queue: str) -> None:
        """Deletes a queue; a missing one is no error. Raises `Unavailable`."""
