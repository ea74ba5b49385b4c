"""How does a test run on virtual time?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

import pytest

from orchestrix import clock
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """A loop on virtual time, and a clock that follows it."""
    made = VirtualLoop()
    with clock.use(VirtualClock(made, Random(1))):
        yield made
        made.discard()
    made.close()
    asyncio.set_event_loop(None)
