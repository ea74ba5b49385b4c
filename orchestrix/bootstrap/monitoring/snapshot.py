"""Health snapshot: the health of a process, noted by its event loop and read by another thread."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from orchestrix.clock import SystemSource
from orchestrix.lifecycle import Check, Health
from orchestrix.telemetry.log_throttle import LogThrottle

log = logging.getLogger("orchestrix")

INTERVAL_S: Final = 0.5
"""Seconds between two notes."""
PROBES: Final = "Health"
"""The component that stands for all where a probe fails."""
_CLOCK: Final = SystemSource()


@dataclass(frozen=True, slots=True)
class HealthNote:
    """What was noted, and when. `phase` is `starting` or `stopping`; None in between."""

    phase: str | None
    checks: tuple[Check, ...]
    at: float

    @property
    def age_s(self) -> float:
        """Seconds since the event loop has noted it: how long it has not run."""
        return _CLOCK.monotonic() - self.at


class HealthSnapshot:
    """Notes `health` twice a second, in the loop, so that no probe is called while the loop changes what it reads.

    It measures by the machine's own clock, as the watchdog does.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._timer: asyncio.TimerHandle | None = None
        self._throttle = LogThrottle()
        self.latest = HealthNote("starting", (), _CLOCK.monotonic())
        """Replaced as a whole: any thread may read it."""

    def start(self) -> None:
        """Begins to note, in the running loop."""
        self._note()

    def stop(self) -> None:
        """The last note stays."""
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        try:
            checks = tuple(self._health.needed())
        except Exception as error:
            checks = (Check(PROBES, False, f"a health check failed: {type(error).__name__}"),)
            if (left_out := self._throttle.due(type(error).__name__)) is not None:
                log.error("a health check failed", exc_info=error, extra={"left_out": left_out})
        self.latest = HealthNote(self._health.phase, checks, _CLOCK.monotonic())
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._note)
