"""Network: transports bytes on virtual time, delayed, in order, and cut at any point."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Final

from orchestrix.testing.simulation.rng import Rng

MIN_GAP_S: Final = 1e-7
"""Seconds between two events that must keep their order: timers of the same moment have none."""


class NetworkLink:
    """One direction of a connection: in order, delayed, and cut at any point."""

    def __init__(self, receiver: Context, delay: Callable[[], float], rng: Rng) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver, self._delay, self._rng = receiver, delay, rng
        self._under_way: deque[asyncio.TimerHandle] = deque()
        self.last = 0.0
        self._open = True

    def send(self, arrive: Callable[[], None]) -> None:
        """`arrive` is called at the other end, unless the connection is cut before."""
        if not self._open:
            return
        now = self._loop.time()
        while self._under_way and self._under_way[0].when() < now:
            self._under_way.popleft()
        self.last = max(self.last + MIN_GAP_S, now + self._delay())
        self._under_way.append(self._loop.call_at(self.last, arrive, context=self._receiver))

    def truncate(self) -> None:
        """Of what is in transit, only the first few still arrive."""
        self._open = False
        now = self._loop.time()
        left = [one for one in self._under_way if one.when() >= now]
        for one in left[self._rng.randrange(0, len(left) + 1) :]:
            one.cancel()
