"""How does a test make time pass without waiting?"""

from __future__ import annotations

from orchestrix.clock import SystemSource


class Shifted(SystemSource):
    """The machine's clock, ahead by what the test adds, and dice that always show the least.

    Waits of the event loop are as long as ever.
    """

    def __init__(self) -> None:
        self._ahead = 0.0

    def advance(self, seconds: float) -> None:
        """From now on it is `seconds` later."""
        self._ahead += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def uniform(self, low: float, high: float) -> float:
        return low

    def wall(self) -> float:
        return super().wall() + self._ahead
