"""Message metrics: what is published and received, by exchange, and whether the broker can be reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from orchestrix.broker.port import Delivery, LinkState, Outcome, Outgoing, Published
from orchestrix.telemetry.metrics.catalogue import (
    BROKER_BLOCKED,
    BROKER_LINKS,
    CONSUMED_MESSAGES,
    DOWN,
    OPERATION_DURATION,
    SENT_MESSAGES,
    UP,
)
from orchestrix.telemetry.metrics.instruments import Values, counter, gauge, histogram

DEFAULT_EXCHANGE: Final = "amq.default"
"""Stands for the exchange without a name, by which a queue is addressed itself."""

_sent, _received = counter(SENT_MESSAGES), counter(CONSUMED_MESSAGES)
_publishing = histogram(OPERATION_DURATION).at("publish")
_ERRORS: Final = {one: "" if one is Outcome.CONFIRMED else one.value for one in Outcome}


def published(messages: Sequence[Outgoing], results: Sequence[Published], seconds: float) -> None:
    """The broker has confirmed these messages, or has not, after so many seconds."""
    _publishing.record(seconds)
    if len(messages) == 1:
        _sent.at(messages[0].exchange or DEFAULT_EXCHANGE, _ERRORS[results[0].outcome]).add()
        return
    pairs = ((one.exchange, result.outcome) for one, result in zip(messages, results, strict=True))
    for (exchange, outcome), count in Counter(pairs).items():
        _sent.at(exchange or DEFAULT_EXCHANGE, _ERRORS[outcome]).add(count)


def received(deliveries: Sequence[Delivery]) -> None:
    """These messages have come."""
    if len(deliveries) == 1:
        _received.at(deliveries[0].exchange or DEFAULT_EXCHANGE).add()
        return
    for exchange, count in Counter(one.exchange for one in deliveries).items():
        _received.at(exchange or DEFAULT_EXCHANGE).add(count)


def watch_link(state: Callable[[], LinkState], blocked: Callable[[], bool]) -> Callable[[], None]:
    """Shows the state of a link to the broker. Returns a function that ends that."""

    def links() -> Values:
        up = state() is LinkState.UP
        return {(UP,): int(up), (DOWN,): int(not up)}

    def blocks() -> Values:
        return {(): int(blocked())}

    ends = [gauge(BROKER_LINKS).watch(links), gauge(BROKER_BLOCKED).watch(blocks)]

    def end() -> None:
        for one in ends:
            one()

    return end
