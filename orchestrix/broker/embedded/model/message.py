"""Message: one message of the embedded broker, and its `x-death` header when it is dead-lettered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrix.broker.embedded import frames
from orchestrix.broker.embedded.model import properties

if TYPE_CHECKING:
    from orchestrix.broker.embedded.model.properties import Field

EXPIRATION = frozenset({"expiration"})


@dataclass(frozen=True, slots=True)
class Death:
    """One entry of `x-death`: how often a message left one queue for one reason."""

    queue: str
    reason: str
    exchange: str
    routing_key: str
    at: datetime
    count: int = 1
    expiration: str | None = None

    def as_field(self) -> Field:
        entry: dict[str, Field] = {
            "count": self.count,
            "reason": self.reason,
            "queue": self.queue,
            "time": self.at,
            "exchange": self.exchange,
            "routing-keys": [self.routing_key],
        }
        return entry if self.expiration is None else entry | {"original-expiration": self.expiration}

    def counted_again(self, before: Death) -> Death:
        """The entry `before`, counted once more: where and when it was first seen is kept."""
        return Death(
            self.queue, self.reason, before.exchange, before.routing_key, before.at, before.count + 1, before.expiration
        )


class Message:
    """Immutable and shared by all queues that it reached. `expiration` is in milliseconds."""

    __slots__ = ("address", "body", "deaths", "exchange", "expiration", "header", "properties", "routing_key")

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        raw_properties: bytes,
        body: bytes,
        *,
        expiration: int | None = None,
        deaths: tuple[Death, ...] = (),
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = raw_properties
        self.body = body
        self.expiration = expiration
        self.deaths = deaths
        self.address = frames.short_string(exchange) + frames.short_string(routing_key)
        self.header = frames.content_header(len(body), raw_properties)

    def header_with_count(self, returns: int) -> bytes:
        """The content header with how often the message came back to a quorum queue."""
        return frames.content_header(
            len(self.body), properties.with_headers(self.properties, {"x-delivery-count": returns})
        )

    def died(self, death: Death, exchange: str, routing_key: str | None, *, last_headers: bool) -> Message:
        """The dead letter made of this message: newest death first, as RabbitMQ writes `x-death`."""
        deaths = self._deaths_with(death)
        changes: dict[str, Field] = {"x-death": [one.as_field() for one in deaths]}
        if not self.deaths:
            changes |= _summary("first", death)
        if last_headers:
            changes |= _summary("last", death)
        raw = properties.with_headers(self.properties, changes, without=EXPIRATION)
        key = self.routing_key if routing_key is None else routing_key
        return Message(exchange, key, raw, self.body, deaths=deaths)

    def _deaths_with(self, death: Death) -> tuple[Death, ...]:
        same = [one for one in self.deaths if (one.queue, one.reason) == (death.queue, death.reason)]
        others = [one for one in self.deaths if one not in same]
        return (death.counted_again(same[0]) if same else death, *others)

    def is_in_cycle(self, queue: str) -> bool:
        """Whether it comes back to `queue` with no consumer's reject on the way: such a loop would never end."""
        names = [one.queue for one in self.deaths]
        if queue not in names:
            return False
        return all(one.reason != "rejected" for one in self.deaths[: names.index(queue) + 1])


def _summary(which: str, death: Death) -> dict[str, Field]:
    return {
        f"x-{which}-death-exchange": death.exchange,
        f"x-{which}-death-queue": death.queue,
        f"x-{which}-death-reason": death.reason,
    }
