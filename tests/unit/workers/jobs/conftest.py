"""What can the tests of jobs ask for?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from orchestrix import clock
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop
from orchestrix.worker.jobs.functions import registered_jobs

from .house import House


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """A loop on virtual time, and a clock that follows it."""
    made = VirtualLoop()
    with clock.use(VirtualClock(made, Random(1))):
        yield made
        made.discard()
    made.close()
    asyncio.set_event_loop(None)


@pytest.fixture
def house(loop: VirtualLoop) -> House:
    """A worker of jobs over a broker in memory, on virtual time."""

    async def made() -> House:
        return House(loop)

    return loop.run_until_complete(made())


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The jobs that the test defines are forgotten."""
    before = list(registered_jobs)
    yield
    registered_jobs[:] = before
