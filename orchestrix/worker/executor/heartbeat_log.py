"""Heartbeat log: says that heartbeats fail, and that they succeed again, without a line for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrix.quantities import counted
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.executor.admins import AdminFailure, AdminResult

REPEAT_EVERY: Final = 10
"""Failures of the same cause after which it is logged again."""


class HeartbeatLog:
    """Logs the first failure of a cause and each tenth, a change of the admin, and the recovery."""

    def __init__(self, executor: str, heartbeat_s: float) -> None:
        self._executor, self._heartbeat_s = executor, heartbeat_s
        self._admin: str | None = None
        self._causes: list[tuple[str, str]] = []
        self._same_cause = self._failed = 0

    def log(self, result: AdminResult) -> None:
        """Logs what is worth it of this heartbeat."""
        if result.accepted_by is None:
            self._failure(result.failures)
        else:
            self._success(result.accepted_by, result.failures)

    def _failure(self, failures: Sequence[AdminFailure]) -> None:
        causes = [(one.url, one.cause) for one in failures]
        self._same_cause = self._same_cause + 1 if causes == self._causes else 1
        self._causes = causes
        self._failed += 1
        if self._same_cause == 1 or self._same_cause % REPEAT_EVERY == 0:
            LOGGER.error(
                "%s: no admin accepts its heartbeats (%s); %s failed, retrying every %g s",
                self._executor,
                sentences(failures),
                counted(self._failed, "heartbeat"),
                self._heartbeat_s,
                extra={"event": log_events.EXECUTOR_FAILED},
            )

    def _success(self, admin: str, failures: Sequence[AdminFailure]) -> None:
        if self._failed:
            LOGGER.warning(
                "%s: registered again at %s after %s",
                self._executor,
                admin,
                self._failures(),
                extra={"event": log_events.EXECUTOR_REGISTERED},
            )
        elif admin != self._admin and failures:
            LOGGER.warning(
                "%s: registered at %s instead: %s",
                self._executor,
                admin,
                sentences(failures),
                extra={"event": log_events.EXECUTOR_REGISTERED},
            )
        elif admin != self._admin:
            LOGGER.info("%s: registered at %s", self._executor, admin, extra={"event": log_events.EXECUTOR_REGISTERED})
        self._admin, self._causes, self._same_cause, self._failed = admin, [], 0, 0

    def _failures(self) -> str:
        return counted(self._failed, "failed heartbeat")


def sentences(failures: Sequence[AdminFailure]) -> str:
    """What each admin answered, for a log line."""
    return "; ".join(f"{one.url}: {one.sentence}" for one in failures)
