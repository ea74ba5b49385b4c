"""What do the jobs of the bench do?"""

from __future__ import annotations

from orchestrix import JobContext, job


@job("nothing")
async def nothing(context: JobContext) -> None:
    """Ends at once."""


@job("stay")
async def stay(context: JobContext) -> None:
    """Says nothing until it is cancelled."""
    while not await context.wait_cancelled(3600.0):
        pass


@job("tick")
async def tick(context: JobContext) -> None:
    """Logs a numbered line every so many seconds, until it is cancelled."""
    number = 0
    while not await context.wait_cancelled(context.payload["every"]):
        number += 1
        await context.log(f"tick {number}")
