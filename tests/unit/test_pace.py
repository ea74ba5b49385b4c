"""Do batches keep their distance, and does nobody wait after a pause?"""

from __future__ import annotations

import asyncio

import pytest

from app.lifecycle import Pace


async def test_a_batch_after_a_pause_begins_at_once_and_the_next_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("app.clock.monotonic", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = Pace(0.05)
    for _ in range(3):
        await pace.wait()
        pace.begin()
    assert slept == pytest.approx([0.05, 0.05])
    now[0] += 0.06
    await pace.wait()
    assert len(slept) == 2, "the distance has been kept by the pause already"
