"""Whom does the leader take for dead when the database's clock goes back?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.cluster import failure_detector
from orchestrix.cluster.failure_detector import FailureDetector, FailureTimeouts
from orchestrix.domain.leases import Fence
from orchestrix.domain.nodes import NodeRow, NodeState, is_silent
from orchestrix.persistence.cluster.nodes import LiveNodes

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEAD_S = 30.0
LOOK_S = 1.0


@dataclass
class World:
    """Nodes that beat every second by the database's clock, which goes as somebody sets it."""

    now: datetime = NOON
    passed: float = 0.0
    nodes: Sequence[NodeRow] = field(
        default_factory=lambda: [
            NodeRow(f"{name}-1", name, NodeState.ALIVE, (), 0, NOON, NOON, None) for name in ("a", "b", "c")
        ]
    )

    def passes(self, seconds: float, *, beating: bool = True) -> None:
        self.passed += seconds
        self.now += timedelta(seconds=seconds)
        if beating:
            self.nodes = [replace(node, beat_at=self.now) for node in self.nodes]

    async def living(self, connection: object) -> LiveNodes:
        return LiveNodes(self.nodes, self.now)

    @asynccontextmanager
    async def read(self) -> Any:
        yield None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(failure_detector, "nodes", SimpleNamespace(living=made.living))
    monkeypatch.setattr(clock, "monotonic", lambda: made.passed)
    return made


def watch_of(world: World) -> FailureDetector:
    fence, none = Fence(1, "x-1"), SimpleNamespace()
    return FailureDetector(fence, world, none, none, FailureTimeouts(1.0, DEAD_S, 2.0), lambda node: None)  # type: ignore[arg-type]


async def silent(watch: FailureDetector) -> list[str]:
    living, since = await watch._read_nodes()
    return [node.id for node in living.nodes if is_silent(node, now=living.now, since=since, limit=DEAD_S)]


@pytest.mark.parametrize(("back", "look"), [(5.5, LOOK_S), (8.0, LOOK_S), (10.0, LOOK_S), (3600.0, LOOK_S), (9.0, 9.5)])
async def test_nobody_is_dead_because_the_clock_went_back(world: World, back: float, look: float) -> None:
    watch = watch_of(world)
    for _ in range(100):
        assert await silent(watch) == []
        world.passes(LOOK_S)
    assert await silent(watch) == []
    world.passes(look - 0.1)
    world.now -= timedelta(seconds=back)
    world.passes(0.1, beating=False)
    assert await silent(watch) == [], "their next beats are yet to come"
    world.passes(DEAD_S - 1.0, beating=False)
    assert await silent(watch) == []
    world.passes(12.0, beating=False)
    assert await silent(watch) == ["a-1", "b-1", "c-1"], "they have had their time"


async def test_who_beats_by_the_new_clock_lives(world: World) -> None:
    watch = watch_of(world)
    await silent(watch)
    world.passes(100.0)
    world.now -= timedelta(hours=1)
    for _ in range(100):
        assert await silent(watch) == []
        world.passes(LOOK_S)
