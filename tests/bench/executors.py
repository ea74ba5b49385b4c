"""Do jobs come to executors as fast as to workers, from the same nodes and with as many places?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import httpx

from orchestrix import clock
from orchestrix.domain.job_rows import JobRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from tests.bench import bars
from tests.bench.cases import Findings
from tests.bench.nodes import NAMES, Cluster, cluster
from tests.bench.product import READY, WrongResult
from tests.bench.servers import Servers
from tests.support import eventually

GROUP: Final = "shop"
PROCESSES: Final = 2
ENDED_WITHIN: Final = 300.0
WORKERS: Final[dict[str, Any]] = {"queue": "default"}
EXECUTORS: Final[dict[str, Any]] = {"queue": None, "executor_group": GROUP, "routing": "ROUND_ROBIN"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many jobs a burst has, how many bursts each side gets, and the places of each process."""

    burst: int = 900
    rounds: int = 3
    places: int = 200


FULL: Final = Sizes()
QUICK: Final = Sizes(100, 1, 50)


def measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """All of it. Raises `WrongResult` if a job does not succeed at its first try."""
    try:
        asyncio.run(_measure(servers, sizes, found))
    except AssertionError as wrong:
        raise WrongResult(str(wrong)) from wrong


async def _measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    rates: dict[str, list[float]] = {"workers": [], "executors": []}
    async with cluster(servers, "executors", ORCHESTRIX_REGISTRY__ALLOW="127.0.0.0/8") as one:
        await one.start(*NAMES)
        for _ in range(PROCESSES):
            one.work(sizes.places)
        await _executors(one, sizes.places)
        database = Database(servers.postgres.url("executors"))
        try:
            for target in (WORKERS, EXECUTORS):
                await _burst(one, database, "warm-up", 10, target)
            for number in range(sizes.rounds):
                for side, target in (("workers", WORKERS), ("executors", EXECUTORS)):
                    rates[side].append(await _burst(one, database, f"{side}-{number}", sizes.burst, target))
        finally:
            await database.close()
    for side, measured in rates.items():
        found.figure(f"jobs that end at once, done by {side}", measured, "/s")
    found.bars.append(bars.called(median(rates["executors"]), median(rates["workers"])))


async def _executors(one: Cluster, places: int) -> None:
    """A group, and executors in it."""
    url = f"{next(iter(one.nodes.values())).url}/registry/groups/{GROUP}"
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        answer = await http.put(url, json={"addressType": "AUTO"})
        assert answer.status_code == 200, answer.text
        for _ in range(PROCESSES):
            one.execute(GROUP, places)

        async def all_there() -> bool:
            return len((await http.get(url)).json()["addressList"]) == PROCESSES

        await eventually(all_there, deadline=READY, every=0.1, message="the executors have registered")


async def _burst(one: Cluster, database: Database, kind: str, count: int, target: dict[str, Any]) -> float:
    """Jobs a second, from the first dispatch to the last end. All become due at once."""
    now = clock.now()
    more = {"created_by": kind, "correlation_id": kind, "created_at": now, "updated_at": now, "wake_at": now}
    wanted = [JobRow(**{"id": clock.uuid7(), "handler": "nothing", **more, **target}) for _ in range(count)]
    async with database.begin() as tx:
        await jobs.insert(tx, wanted)

    async def all_ended() -> bool:
        return await one.evidence.ended(kind) >= count

    await eventually(all_ended, deadline=ENDED_WITHIN, every=0.2, message=f"every job of {kind} ends")
    return await one.evidence.done_rate(kind)
