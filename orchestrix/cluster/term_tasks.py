"""Tasks of a leadership term: what each receives, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrix.broker.port import Delivery
from orchestrix.errors import Unavailable
from orchestrix.lifecycle import Services, ended


async def stopped(tasks: set[asyncio.Task[Any]], services: Services) -> None:
    """Ends what keeps the lead, then what is done with it."""
    await cancelled(tasks)
    await services.stop()


async def cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancels what still runs and waits until it has ended. What they failed with was told before, or matters not."""
    await asyncio.gather(*(ended(task) for task in tasks), return_exceptions=True)


def the_one(received: list[Delivery]) -> Delivery:
    """The delivery that was waited for. Raises `Unavailable` where the consumer has ended."""
    if not received:
        raise Unavailable("nobody reads the leader's queue any more")
    return received[0]
