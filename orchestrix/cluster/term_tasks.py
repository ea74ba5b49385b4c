"""Tasks of a leadership term: what each receives, how they end, and the log lines of its begin and its end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from orchestrix.broker.port import Delivery
from orchestrix.domain.leases import LeaderMode
from orchestrix.errors import Unavailable
from orchestrix.lifecycle import Services, ended
from orchestrix.telemetry import log_events

log = logging.getLogger("orchestrix.cluster")


def log_elected(term: int, mode: LeaderMode) -> None:
    """The node leads, or does so in another mode."""
    extra = {"event": log_events.LEADER_ELECTED, "term": term, "mode": str(mode)}
    log.info("elected leader: term %d, mode %s", term, mode, extra=extra)


def log_lost(term: int, reason: str) -> None:
    """The node leads no longer."""
    extra = {"event": log_events.LEADER_LOST, "term": term, "reason": reason}
    log.warning("leadership lost: term %d: %s", term, reason, extra=extra)


async def stopped(tasks: set[asyncio.Task[Any]], services: Services) -> None:
    """Ends the tasks that keep leadership, then the duties."""
    await cancelled(tasks)
    await services.stop()


async def cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancels what still runs and waits until it has ended. Their errors were logged before, or do not matter."""
    await asyncio.gather(*(ended(task) for task in tasks), return_exceptions=True)


def single_delivery(received: list[Delivery]) -> Delivery:
    """The delivery that was waited for. Raises `Unavailable` where the consumer has ended."""
    if not received:
        raise Unavailable("the consumer of the election queue ended")
    return received[0]
