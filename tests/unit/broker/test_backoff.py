"""Does waiting grow, stay within its limits and start short again?"""

from __future__ import annotations

import pytest

from orchestrix import clock
from orchestrix.broker.amqp.backoff import Backoff


class Dice(clock.SystemSource):
    """Always the highest or the lowest throw."""

    def __init__(self, high: bool) -> None:
        self.high = high

    def uniform(self, low: float, high: float) -> float:
        return high if self.high else low


def test_the_ceiling_doubles_up_to_the_highest() -> None:
    with clock.use(Dice(high=True)):
        backoff = Backoff(0.2, 1.0)
        assert [backoff.next() for _ in range(5)] == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0])
        backoff.reset()
        assert backoff.next() == 0.2


def test_jitter_is_full() -> None:
    with clock.use(Dice(high=False)):
        backoff = Backoff(0.2, 1.0)
        assert [backoff.next() for _ in range(3)] == [0, 0, 0]
