"""Do batches keep their distance, and does nobody wait after a pause?"""

from __future__ import annotations

import asyncio

from app import clock
from app.lifecycle import Pace


async def test_a_batch_after_a_pause_begins_at_once_and_the_next_one_waits() -> None:
    pace, begun = Pace(0.05), clock.monotonic()
    times = []
    for _ in range(3):
        await pace.wait()
        pace.begin()
        times.append(clock.monotonic() - begun)
    assert times[0] < 0.04
    assert times[1] - times[0] >= 0.049
    assert times[2] - times[1] >= 0.049
    await asyncio.sleep(0.06)  # the pause itself
    before = clock.monotonic()
    await pace.wait()
    assert clock.monotonic() - before < 0.04
