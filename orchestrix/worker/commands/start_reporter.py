"""Start reporter: reports to the orchestrator when a command's work has started, where it cannot know that
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from orchestrix import clock
from orchestrix.worker.commands import events
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.reporter import CommandReport, CommandReporter

REPORT_AFTER_MIN_S: Final = 0.2
"""The start of shorter work is never reported."""
REPORT_AFTER_SHARE: Final = 0.25
"""Share of the step's time: the start is reported if it came later than that after sending, or if the work lasts
longer."""


class StartReporter:
    """Sends `evt.stepStarted` at most once for each piece of work, and never after its result.

    A worker measures its work by its own clock. How long the command was in transit is a comparison with the sender's
    clock: a hint, which decides only how soon the start is reported.
    """

    def __init__(self, reporter: CommandReporter) -> None:
        self._reporter = reporter
        self._reported: set[CommandDelivery] = set()

    def observe(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """Reports the start of those among `busy` that are due."""
        busy = list(busy)
        self._reported.intersection_update(busy)
        for command in busy:
            if (
                command.begun is not None
                and command not in self._reported
                and now - command.begun >= self._after(command, now)
            ):
                self._reported.add(command)
                self._reporter.add(
                    CommandReport(events.started(command, now - command.begun), "started", began=command)
                )

    def _after(self, command: CommandDelivery, now: float) -> float:
        """The seconds of work after which the start is reported."""
        quarter = REPORT_AFTER_SHARE * command.timeout
        begun = now if command.begun is None else command.begun
        waited = clock.now().timestamp() - (now - begun) - sent_at(command)
        return REPORT_AFTER_MIN_S if waited > quarter else max(REPORT_AFTER_MIN_S, quarter)


def sent_at(command: CommandDelivery) -> float:
    """When the command was sent, in seconds since 1970 by the sender's clock; infinite where it does not say so."""
    stamped = command.deliveries[0].sent_at
    if stamped is not None:
        return stamped
    try:
        id = UUID(command.message.id)
    except ValueError:
        return float("inf")
    return (id.int >> 80) / 1000 if id.version == 7 else float("inf")
