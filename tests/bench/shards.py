"""How soon are the shards of a member that leaves others', and what do the heartbeats of many members cost?"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from tests.bench import bars
from tests.bench.cases import Findings
from tests.bench.control import Orders
from tests.bench.measure import Meter
from tests.bench.members import BEAT_S
from tests.bench.nodes import NAMES, Cluster, cluster
from tests.bench.product import READY, WrongResult, spawn
from tests.bench.servers import Servers
from tests.shard_fleet.fleet import Fleet, names
from tests.shard_fleet.intervals import machine_time
from tests.support import holds

SERVICE: Final = "bench"
SHARDS, PROCESSES, EACH = 1000, 4, 5
TIMEOUT_S: Final = 15.0
"""The default."""
SHARED_WITHIN_S: Final = 60.0
NODE: Final = "ada"
DATABASE: Final = "shards"
OF_EACH: Final = 10
"""Shards of each of many members."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How often one of twenty leaves; how many members send heartbeats, and for how many seconds they are measured."""

    leaves: int = 10
    members: int = 1000
    seconds: float = 60.0


FULL: Final = Sizes()
QUICK: Final = Sizes(2, 1000, 15.0)


def measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """All of it. Raises `WrongResult` if a shard had two holders, or a member was not answered."""
    try:
        asyncio.run(_measure(servers, sizes, found))
    except AssertionError as wrong:
        raise WrongResult(str(wrong)) from wrong


async def _measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    for allocation in ("even", "minimal"):
        async with cluster(servers, f"{DATABASE}-{allocation}", ORCHESTRIX_SHARDS__ALLOCATION=allocation) as one:
            await one.start(*NAMES)
            await _leaves(servers, f"{DATABASE}-{allocation}", allocation, sizes.leaves, found)
    async with cluster(servers, DATABASE) as one:
        await one.start(NODE)
        await _heartbeats(servers, one, sizes, found)


async def _leaves(servers: Servers, database: str, allocation: str, times: int, found: Findings) -> None:
    """One of twenty leaves, again and again; a new one joins after each."""
    folder = servers.run.root / database
    folder.mkdir()
    fleet = Fleet(servers.run, folder, TIMEOUT_S)
    workers = names("worker", 0, PROCESSES * EACH)
    try:
        for place in range(PROCESSES):
            process = await fleet.start(servers.rabbit.url(database), FLEET_LAST_WORK="0")
            await fleet.join(process, SERVICE, SHARDS, *workers[place * EACH : (place + 1) * EACH])
        await fleet.shared(SERVICE, SHARDS, within=SHARED_WITHIN_S)
        took = []
        for worker in (workers[number % len(workers)] for number in range(times)):
            process = fleet.process_of(worker)
            since = machine_time()
            await fleet.leave(worker)
            await fleet.shared(SERVICE, SHARDS, within=SHARED_WITHIN_S)
            window = await asyncio.to_thread(_end_of_window, servers, database)
            took.append(1000 * (_last_begin(fleet, since) - window))
            await fleet.join(process, SERVICE, SHARDS, worker)
            await fleet.shared(SERVICE, SHARDS, within=SHARED_WITHIN_S)
        fleet.check()
    finally:
        fleet.close()
    case = f"one of {len(workers)} leaves {SHARDS:,} shards, {allocation}: all held after the window"
    found.bars.append(bars.rebalanced(allocation, found.figure(case, took).worst))


def _last_begin(fleet: Fleet, since: float) -> float:
    """When the last shard of those that have moved was begun by its new member, in seconds since 1970."""
    begun = [one.begin for one in fleet.intervals() if one.begin > since]
    assert begun, "shards have moved"
    return max(begun) + time.time() - machine_time()


def _end_of_window(servers: Servers, database: str) -> float:
    """That of the last generation that has moved shards, in seconds since 1970."""
    query = "SELECT extract(epoch FROM closes_at)::float AS at FROM generations WHERE moved > 0 ORDER BY number DESC"
    return float(servers.rows(database, query)[0]["at"])


async def _heartbeats(servers: Servers, one: Cluster, sizes: Sizes, found: Findings) -> None:
    pids = {"node": one.nodes[NODE].process.pid, "database": servers.postgres.pid, "broker": servers.rabbit.pid}
    idle = Meter(pids)
    await holds(lambda: True, during=sizes.seconds / 4)
    _note(found, "without members", idle)
    orders = Orders()
    env = {"ORCHESTRIX_BROKER_URL": servers.rabbit.url(DATABASE), **orders.env}
    client = spawn(servers, "members", [sys.executable, "-m", "tests.bench.members"], env)
    try:
        await asyncio.to_thread(orders.greet, READY)
        count = sizes.members * OF_EACH
        _checked(await asyncio.to_thread(orders.ask, "join", members=sizes.members, count=count))
        before = await asyncio.to_thread(_generation, servers)
        meter = Meter(pids)
        answer = _checked(await asyncio.to_thread(orders.ask, "beat", seconds=sizes.seconds))
        case = f"{sizes.members:,} members every {BEAT_S:g} s"
        used = _note(found, case, meter)
        assert await asyncio.to_thread(_generation, servers) == before, "no member was missed"
        found.bars.append(bars.heard("coordinator", case, used["node"]))
        found.figure(f"heartbeat answered, {case}", answer["ms"])
    finally:
        orders.close()
        servers.run.kill(client)


def _note(found: Findings, case: str, meter: Meter) -> dict[str, float]:
    """The per cent of a core that each process has used."""
    used = {process: ms / meter.seconds / 10 for process, ms in meter.read().items()}
    for process, percent in used.items():
        found.figure(f"{process}, {case}", [percent], "% of a core")
    return used


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("problem"):
        raise WrongResult(answer["problem"])
    return answer


def _generation(servers: Servers) -> tuple[int, int]:
    """The number of the newest generation, and how many members there are."""
    query = "SELECT (SELECT max(number) FROM generations) AS number, (SELECT count(*) FROM shard_workers) AS members"
    (row,) = servers.rows(DATABASE, query)
    return row["number"], row["members"]
