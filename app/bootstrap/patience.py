"""Patience: repeats what a process does at its start while the database is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app import clock
from app.errors import RetryLater

log = logging.getLogger("orchestrix")


async def persistent(call: Callable[[], Awaitable[object]]) -> None:
    """Calls until it is no `RetryLater` that comes back; says so once. A second call must do no harm."""
    told = False
    while True:
        try:
            await call()
            return
        except RetryLater as away:
            if not told:
                log.warning("waiting for the database: %s", away)
            told = True
            await asyncio.sleep(clock.uniform(0.2, 1.0))
