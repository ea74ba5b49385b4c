"""Long poll: waits for a change of a saga without asking the database all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from starlette.requests import Request

from orchestrix import clock
from orchestrix.api.dependencies import ApiContext

SLICE: Final = 1.0
"""Seconds after which a waiting request sees that the process is stopping."""


async def moved(context: ApiContext, saga: str, instance_id: int, version: int, seconds: float) -> bool:
    """True once the instance may have passed `version`; False when `seconds` are over or the process is stopping."""
    end = clock.monotonic() + seconds
    while not context.health.draining and (left := end - clock.monotonic()) > 0:
        until = clock.monotonic() + min(left, SLICE)
        await context.watch.changed(saga, instance_id, version, min(left, SLICE))
        if clock.monotonic() < until:
            return True
    return False


async def unless_gone(request: Request, work: Coroutine[Any, Any, bool]) -> bool:
    """What `work` returns; False, and `work` ended, once the client has gone away."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done() and tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(request: Request) -> bool:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return False
