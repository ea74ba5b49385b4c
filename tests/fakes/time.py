"""How does a test make time pass without waiting?"""

from __future__ import annotations

import asyncio

from orchestrix.clock import SystemSource
from orchestrix.testing.simulation.virtual_time import EPOCH_S, VirtualLoop


class LoopTime(SystemSource):
    """The time of the running loop if that is a virtual one, else the machine's."""

    def monotonic(self) -> float:
        now = _virtual_now()
        return super().monotonic() if now is None else now

    def boottime(self) -> float:
        now = _virtual_now()
        return super().boottime() if now is None else now

    def wall(self) -> float:
        now = _virtual_now()
        return super().wall() if now is None else EPOCH_S + now


def _virtual_now() -> float | None:
    loop = asyncio._get_running_loop()
    return loop.time() if isinstance(loop, VirtualLoop) else None


class Shifted(LoopTime):
    """That clock, ahead by what the test adds, and dice that always show the least.

    Waits of the event loop are as long as ever.
    """

    def __init__(self) -> None:
        self._ahead = 0.0

    def advance(self, seconds: float) -> None:
        """From now on it is `seconds` later."""
        self._ahead += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def boottime(self) -> float:
        return super().boottime() + self._ahead

    def uniform(self, low: float, high: float) -> float:
        return low

    def wall(self) -> float:
        return super().wall() + self._ahead
