"""Embedded exchange: the queues to which it routes a message with a given routing key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

TYPES = ("direct", "topic", "fanout")
PREDECLARED = {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout"}
CACHED_KEYS = 4_096


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """What a declaration says; a second one must say the same."""

    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: str | None

    def by_argument(self) -> dict[str, object]:
        """Under the names that a client knows."""
        return {
            "type": self.kind,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "alternate-exchange": self.alternate,
        }


def topic_matches(pattern: str, routing_key: str) -> bool:
    """Whether `*` (one word) and `#` (any number) of the binding key fit. AMQP 0-9-1, 3.1.3.3."""
    parts = _words(pattern)
    places = _skip_hashes({0}, parts)
    for word in _words(routing_key):
        stay = {at for at in places if at < len(parts) and parts[at] == "#"}
        step = {at + 1 for at in places if at < len(parts) and parts[at] in ("*", word)}
        places = _skip_hashes(stay | step, parts)
    return len(parts) in places


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _skip_hashes(places: set[int], parts: list[str]) -> set[int]:
    """A `#` may match no word: the position behind it is reached as well."""
    reached = set(places)
    for at in sorted(places):
        while at < len(parts) and parts[at] == "#":
            at += 1
            reached.add(at)
    return reached


_MATCHES: dict[str, Callable[[str, str], bool]] = {
    "direct": str.__eq__,
    "topic": topic_matches,
    "fanout": lambda _pattern, _key: True,
}


@dataclass(slots=True)
class EmbeddedExchange:
    """Bindings are (queue, key); the order of binding is the order of delivery."""

    name: str
    settings: ExchangeSettings
    bindings: dict[tuple[str, str], None] = field(default_factory=dict)
    _cache: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def bind(self, queue: str, key: str) -> None:
        self.bindings[queue, key] = None
        self._cache.clear()

    def unbind(self, queue: str, key: str) -> None:
        self.bindings.pop((queue, key), None)
        self._cache.clear()

    def forget(self, queue: str) -> bool:
        """Drop all bindings of a deleted queue. True if there were any."""
        before = len(self.bindings)
        self.bindings = {pair: None for pair in self.bindings if pair[0] != queue}
        self._cache.clear()
        return len(self.bindings) < before

    def route(self, routing_key: str) -> tuple[str, ...]:
        """Names of the queues, each once."""
        found = self._cache.get(routing_key)
        if found is None:
            found = tuple(dict.fromkeys(self._matching(routing_key)))
            if len(self._cache) >= CACHED_KEYS:
                self._cache.clear()
            self._cache[routing_key] = found
        return found

    def _matching(self, routing_key: str) -> Iterable[str]:
        matches = _MATCHES[self.settings.kind]
        return (queue for queue, key in self.bindings if matches(key, routing_key))
