"""Tasks of a leadership term: what each receives, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrix.broker.port import Delivery
from orchestrix.errors import Unavailable
from orchestrix.lifecycle import Services, ended


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
