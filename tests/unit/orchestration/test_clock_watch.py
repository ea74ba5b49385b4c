"""How long does a node look for waits that are too long after the clock was set back?"""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.engine.maintenance import clock_regression
from orchestrix.engine.maintenance.clock_regression import QUIET_PASSES_LIMIT, ClockRegressionDetector


class World:
    """A database whose stored times are so far ahead, and so many waits too long."""

    def __init__(self) -> None:
        self.ahead, self.wrong, self.passes, self.now = 0.0, 0, 0, 0.0

    @asynccontextmanager
    async def read(self) -> Any:
        yield None

    async def ahead_s(self, connection: object) -> float:
        return self.ahead

    async def mend(self, database: object, claim_s: float) -> int:
        self.passes += 1
        found, self.wrong = self.wrong, 0
        return found

    async def looks(self, watch: ClockRegressionDetector, count: int) -> int:
        """The passes that so many looks came to."""
        before = self.passes
        for _ in range(count):
            await watch.run_once()
            self.now += 10.0
            self.ahead = max(0.0, self.ahead - 10.0)
        return self.passes - before


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(clock_regression, "clock_rollback", SimpleNamespace(ahead_s=made.ahead_s, repair=made.mend))
    monkeypatch.setattr(clock, "monotonic", lambda: made.now)
    return made


async def test_it_ends_with_what_is_to_be_mended(world: World) -> None:
    watch = ClockRegressionDetector(world, 15.0)  # type: ignore[arg-type]
    assert await world.looks(watch, 5) == 0
    world.ahead, world.wrong = 3600.0, 100
    assert await world.looks(watch, 100) == 1 + QUIET_PASSES_LIMIT
    world.ahead += 60.0
    assert await world.looks(watch, 10) == QUIET_PASSES_LIMIT, "it went back once more"
    world.ahead = 0.0
    assert await world.looks(watch, 5) == 0
    world.ahead = 600.0
    assert await world.looks(watch, 5) == QUIET_PASSES_LIMIT
