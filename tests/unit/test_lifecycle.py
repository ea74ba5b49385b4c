"""Does a part of a process end when it is told to?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app import lifecycle
from app.lifecycle import Loop, Wake, ended


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "ASK_AGAIN", 0.05)


async def _deaf() -> None:
    """Loses one cancellation, as a driver does that meets it while it gives up a connection."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0)


async def _begun(round: Callable[[], Awaitable[None]]) -> Loop:
    loop = Loop("test", round)
    await loop.start()
    await asyncio.sleep(0)
    return loop


async def test_a_loop_ends_whose_round_has_lost_its_cancellation() -> None:
    rounds = 0

    async def once() -> None:
        nonlocal rounds
        rounds += 1
        await _deaf()

    loop = await _begun(once)
    await asyncio.wait_for(loop.stop(), 5)
    assert rounds == 1


async def test_a_loop_ends_that_waits_on_after_it_has_lost_its_cancellation() -> None:
    async def once() -> None:
        await _deaf()
        await Wake().wait(None)

    loop = await _begun(once)
    await asyncio.wait_for(loop.stop(), 5)


async def test_what_a_task_has_failed_with_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    with pytest.raises(ValueError, match="broken"):
        await ended(task)
