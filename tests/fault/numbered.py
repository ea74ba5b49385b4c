"""Which job says everything by numbers, so that a test sees what was lost or said twice?

Copied beside the processes of a test, which load it as a user's module. Each beginning leaves a line in `EFFECTS`, in
the folder of the process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

from orchestrix import JobContext, Transient, job

EFFECTS: Final = Path("effects")
GO: Final = Path("go")
LINES: Final = 5


@job("count")
async def count(context: JobContext) -> dict[str, Any]:
    """Logs 0 to 4, and how far it is."""
    await _begin(context)
    for n in range(LINES):
        await context.log(n)
        await context.progress(100 * (n + 1) / LINES)
        await context.wait_cancelled(0.01)
    return {"lines": LINES}


@job("quiet")
async def quiet(context: JobContext) -> dict[str, Any]:
    """Says nothing but that it runs, and how it ended."""
    await _begin(context)
    await context.wait_cancelled(0.05)
    return {"lines": 0}


@job("patient")
async def patient(context: JobContext) -> dict[str, Any]:
    """The same as `count`, with a wait in its middle, until there is a file."""
    await _begin(context)
    for n in range(LINES):
        await context.log(n)
        while n == LINES // 2 and not GO.exists():
            await context.wait_cancelled(0.02)
            context.raise_if_cancelled()
    return {"lines": LINES}


@job("freezing")
async def freezing(context: JobContext) -> dict[str, Any]:
    """Its first try stops the whole worker, which says nothing more until it is woken; the next one is as `count`."""
    if context.attempt > 1:
        return await count(context)
    await _begin(context)
    await context.log(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    await context.wait_cancelled()
    return {}


@job("failing")
async def failing(context: JobContext) -> dict[str, Any]:
    """Its first try fails, the next one is as `count`."""
    if context.attempt > 1:
        return await count(context)
    await _begin(context)
    await context.log(0)
    await context.wait_cancelled(0.2)
    raise Transient("FirstTry", "only the first one")


async def _begin(context: JobContext) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{context.job_id} {context.history_id}\n")
