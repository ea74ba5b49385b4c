"""Listening: since when this node would have noticed a sign of life of any member."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState

LONGEST_PAUSE_S: Final = 3.0
"""Seconds between two updates after which the process was frozen: what members sent meanwhile may still wait."""
LARGEST_JUMP_S: Final = 2.0
"""Seconds by which the database's clock may differ from what this process's own clock expects of it."""


class Listening:
    """Since when, by the database's clock, the node has listened to heartbeats without interruption.

    Silence of members counts from then on only: not what they could not say while the broker or the database was away,
    the broker was blocked by an alarm, this process was frozen, or the database's clock jumped.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._since: datetime | None = None
        self._generation = 0
        self._updated: tuple[datetime, float] | None = None

    def interrupt(self) -> None:
        """Something kept signs of life from being stored."""
        self._since = self._updated = None

    def update(self, now: datetime) -> datetime:
        """Since when; `now` is the time of the database, which answers. To be called each second."""
        if not self._is_reachable() or self._was_interrupted(now):
            self._since = None
        self._updated = now, clock.monotonic()
        self._generation = self._broker.generation
        if self._since is None:
            self._since = now
        return self._since

    def _is_reachable(self) -> bool:
        broker = self._broker
        return broker.state is LinkState.UP and broker.blocked is None and broker.generation == self._generation

    def _was_interrupted(self, now: datetime) -> bool:
        if self._updated is None:
            return True
        then, at = self._updated
        passed = clock.monotonic() - at
        jump = abs(now - then - timedelta(seconds=passed))
        return passed > LONGEST_PAUSE_S or jump > timedelta(seconds=LARGEST_JUMP_S)
