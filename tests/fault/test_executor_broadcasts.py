"""Does a broadcast over many executors come to its end though some crash, and do many broadcasts at once, too?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrix.domain.jobs import FINAL
from tests.fault.executor_jobs import GROUP, ExecutorJobs, Talkers
from tests.fault.executors import REAL, Address, RegistryWorld, Times
from tests.servers.run import Run
from tests.support import eventually, free_port

FIFTY = 50
CRASH = 3
SLOW = Times(heartbeat=2.0, timeout=3.0, beat=3.0, dead=8.0, sweep=1.5)
"""Heartbeats of fifty executors, which leave nodes time for something else."""
MOST_LIVE = 110
"""Jobs of a group that may be open at once: those of two broadcasts over fifty, and not those of all at once."""


@pytest.fixture
def times(scale: Callable[[int, int], int]) -> Times:
    """The default times in a soak."""
    return (SLOW, REAL)[scale(0, 1)]


@pytest.fixture
def talkers(server_run: Run, tmp_path: Path, times: Times) -> Iterator[Talkers]:
    """Starts executors; ends them with the test and shows their logs if it failed."""
    made = Talkers(server_run, tmp_path, times.heartbeat)
    yield made
    made.close()


@pytest.fixture
def system(registry: RegistryWorld, talkers: Talkers) -> ExecutorJobs:
    """Two nodes, of which none runs yet."""
    return ExecutorJobs(registry, talkers)


async def test_broadcasts_over_fifty_of_which_three_crash_and_many_at_once(
    system: ExecutorJobs, times: Times, scale: Callable[[int, int], int]
) -> None:
    await system.up(ORCHESTRIX_JOBS__MAX_LIVE=str(MOST_LIVE))
    await system.registry.make_group("pair")
    doomed = [_address() for _ in range(CRASH)]
    others = [_address() for _ in range(FIFTY - CRASH)]
    pair = [_address() for _ in range(2)]
    start, urls = system.talkers.start, system.registry.world.urls
    dying = [start("sdk", GROUP, urls, one) for one in doomed]
    start("sdk", GROUP, urls, *others)
    start("sdk", "pair", urls, *pair)
    await asyncio.gather(
        system.registry.has(GROUP, [*doomed, *others], within=60.0), system.registry.has("pair", pair, within=60.0)
    )
    shards = {one: place for place, one in enumerate(sorted([*doomed, *others]))}
    crashing, winner = sorted(shards[one] for one in doomed), shards[others[0]]
    gates = {end: system.gate(end) for end in ("any", "all")}
    first = await _broadcast(system, GROUP, "any", until=str(gates["any"]), only=winner)
    second = await _broadcast(system, GROUP, "all", until=str(gates["all"]))
    await _all_run(system, first, second)
    for process in dying:
        process.kill9()
    for gate in gates.values():
        gate.touch()
    await _ends_with_the_first(system, first, winner)
    await _ends_with_all(system, second, crashing)
    await _many_at_once(system, scale(60, 200))


def _address() -> Address:
    return f"http://127.0.0.1:{free_port()}"


async def _broadcast(system: ExecutorJobs, group: str, end: str, **payload: Any) -> str:
    routing = {"strategy": "SHARDING_BROADCAST", "end": end}
    return await system.post(group=group, handler="shard", payload=payload, retries=3, routing=routing)


async def _ends_with_the_first(system: ExecutorJobs, parent: str, winner: int) -> None:
    """All others are cancelled, those that have crashed as well."""
    told = await _ended(system, parent)
    assert (told.state, told.result) == (
        "SUCCEEDED",
        [{"shard": place} if place == winner else None for place in range(FIFTY)],
    )
    rows = await system.registry.sql(f"SELECT shard_index, state FROM jobs WHERE parent_id = '{parent}'")
    assert {row.shard_index for row in rows if row.state == "SUCCEEDED"} == {winner}
    assert Counter(row.state for row in rows) == {"SUCCEEDED": 1, "CANCELLED": FIFTY - 1}


async def _ends_with_all(system: ExecutorJobs, parent: str, crashing: Sequence[int]) -> None:
    """What the crashed ones had runs again elsewhere, with its index, and nothing else does."""
    told = await _ended(system, parent)
    assert (told.state, told.result) == ("SUCCEEDED", [{"shard": place} for place in range(FIFTY)])
    query = f"SELECT shard_index, attempt, address, routing_address FROM jobs WHERE parent_id = '{parent}'"
    rows = await system.registry.sql(query)
    assert sorted(row.shard_index for row in rows) == list(range(FIFTY))
    again = [row for row in rows if row.address != row.routing_address]
    assert sorted(row.shard_index for row in again) == crashing
    assert {row.attempt for row in rows if row not in again} == {1}
    assert max(system.talkers.begun().values()) == 1


async def _many_at_once(system: ExecutorJobs, count: int) -> None:
    """More broadcasts than jobs may be open at once, and a job behind them: each child runs, once."""
    parents = await asyncio.gather(*(_broadcast(system, "pair", "all") for _ in range(count)))
    single = await system.post(group="pair", handler="shard")
    for parent in parents:
        told = await _ended(system, parent, within=120.0)
        assert (told.state, told.result) == ("SUCCEEDED", [{"shard": 0}, {"shard": 1}])
    assert (await _ended(system, single)).state == "SUCCEEDED"
    rows = await system.registry.sql("SELECT parent_id, state, attempt FROM jobs WHERE parent_id IS NOT NULL")
    ours = [row for row in rows if row.parent_id in set(parents)]
    assert Counter((row.state, row.attempt) for row in ours) == {("SUCCEEDED", 1): 2 * count}


async def _ended(system: ExecutorJobs, parent: str, *, within: float = 60.0) -> Any:
    """The job, once it and all its children are over: of those whose executors have died that is known by silence."""

    async def over() -> Any:
        query = f"SELECT id, state, children_left FROM jobs WHERE id = '{parent}' OR parent_id = '{parent}'"
        rows = await system.registry.sql(query)
        live = [row for row in rows if row.state not in FINAL or row.children_left]
        assert not live, live[:3]
        return True

    limit = within + 2 * system.registry.times.dead
    await eventually(over, deadline=limit, every=0.2, message="a broadcast ends")
    return (await system.told(parent))[0]


async def _all_run(system: ExecutorJobs, *parents: str) -> None:
    async def run() -> bool:
        rows = await system.registry.sql("SELECT parent_id FROM jobs WHERE state = 'RUNNING' AND seq > 0")
        found = Counter(row.parent_id for row in rows)
        assert [found[one] for one in parents] == [FIFTY] * len(parents), found
        return True

    await eventually(run, deadline=60.0, every=0.2, message="all fifty run")
