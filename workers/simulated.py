"""What stands in for a step's work, so that the flow can be watched or measured without it?"""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrix.saga.messages import Command
from orchestrix.worker.context import Context

SECONDS: Final = 1.5
"""How long the specification's simulated work takes (S3, steps 2 and 4)."""


async def simulate(context: Context, command: Command) -> None:
    """Takes its time and leaves nothing behind."""
    await asyncio.sleep(SECONDS)


async def do_nothing(context: Context, command: Command) -> None:
    """Succeeds at once and leaves nothing behind."""
