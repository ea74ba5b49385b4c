"""Simulated work: replaces a step's work, so that the flow can be watched or measured without it."""

from __future__ import annotations

import asyncio
from typing import Final

SECONDS: Final = 1.5
"""How long the specification's simulated work takes (S3, steps 2 and 4)."""


async def stand_in(provider: str) -> bool:
    """Whether `provider` is one that does nothing: `simulated` takes its time, `none` none at all."""
    if provider == "simulated":
        await asyncio.sleep(SECONDS)
    return provider in ("simulated", "none")
