"""Does a test on virtual time wait for nothing, and is a thread refused there?"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from orchestrix import clock
from orchestrix.testing.simulation.virtual_time import UnsupportedOnVirtualTime, VirtualLoop

pytestmark = pytest.mark.virtual_time


async def test_an_hour_takes_no_time_and_the_clock_shows_it() -> None:
    loop, begun = asyncio.get_running_loop(), time.monotonic()
    before = loop.time(), clock.monotonic(), clock.now().timestamp()
    await asyncio.sleep(3600)
    after = loop.time(), clock.monotonic(), clock.now().timestamp()
    assert [late - early for early, late in zip(before, after, strict=True)] == [3600] * 3
    assert time.monotonic() - begun < 600


async def test_a_thread_is_not_started() -> None:
    with pytest.raises(UnsupportedOnVirtualTime, match=r"virtual_time\(False\)"):
        threading.Thread(target=print).start()
    with pytest.raises(UnsupportedOnVirtualTime):
        await asyncio.to_thread(print)


class Caller:
    """A thread, started before the test, that calls a loop when it is told to."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._may_call = threading.Event()
        self.raised: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._may_call.wait(60)
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(print)
        except UnsupportedOnVirtualTime as refused:
            self.raised = refused

    def call(self, loop: asyncio.AbstractEventLoop) -> None:
        """It has called."""
        self._loop = loop
        self._may_call.set()
        self._thread.join(60)


@pytest.fixture
def caller() -> Caller:
    """One for the test."""
    return Caller()


async def test_a_thread_from_elsewhere_does_not_reach_the_loop(caller: Caller) -> None:
    caller.call(asyncio.get_running_loop())
    assert isinstance(caller.raised, UnsupportedOnVirtualTime)


@pytest.mark.virtual_time(False)
async def test_one_that_wants_the_machines_time_has_it_and_its_threads() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
    assert abs(clock.monotonic() - time.monotonic()) < 60
    assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
