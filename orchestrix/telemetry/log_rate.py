"""Log rate: how many lines of one kind a process writes in a second, and how many it has left out."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from orchestrix import clock
from orchestrix.quantities import counted
from orchestrix.telemetry.log_events import LINES_LEFT_OUT
from orchestrix.telemetry.metrics.catalogue import LOG_LINES_LOST, RATE_LIMIT
from orchestrix.telemetry.metrics.instruments import counter

LINES_PER_SECOND: Final = 200
_lost = counter(LOG_LINES_LOST).at(RATE_LIMIT)


class LogRateLimit:
    """Lets `limit` lines pass in a second; then, one second later, `logger` writes how many were left out.

    For lines of an event loop: it takes no lock.
    """

    def __init__(self, logger: logging.Logger, limit: int = LINES_PER_SECOND) -> None:
        self._logger, self._limit = logger, limit
        self._begun = 0.0
        self._passed = self._left_out = 0
        self.left_out = 0
        """How many lines were never written."""

    def passes(self) -> bool:
        """Whether the next line may be written."""
        now = clock.monotonic()
        if not 0.0 <= now - self._begun < 1.0:
            self._report()
            self._begun, self._passed = now, 0
        if self._passed < self._limit:
            self._passed += 1
            return True
        self.left_out += 1
        _lost.add()
        self._left_out += 1
        if self._left_out == 1:
            self._report_later()
        return False

    def _report_later(self) -> None:
        try:
            asyncio.get_running_loop().call_later(1.0, self._report)
        except RuntimeError:  # no loop: the next line reports it
            return

    def _report(self) -> None:
        count, self._left_out = self._left_out, 0
        if count:
            extra = {"event": LINES_LEFT_OUT, "left_out": count}
            self._logger.info("%s left out: over %d in a second", counted(count, "line"), self._limit, extra=extra)
