"""What do the heartbeats of many executors cost a node and its database?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tests.bench import bars
from tests.bench.cases import Findings
from tests.bench.control import Orders
from tests.bench.measure import Meter
from tests.bench.nodes import Cluster, cluster
from tests.bench.product import READY, WrongResult, spawn
from tests.bench.servers import Servers
from tests.support import holds

APPS: Final = 20
INTERVAL_S: Final = 30.0
JOINING_RATE: Final = 100.0
CHANGE_EVERY: Final = 97
"""Of so many heartbeats, one is a goodbye, and one comes from a new process at the address of the last goodbye."""
REGISTER, DEREGISTER = "/api/registry", "/api/registryRemove"
NODE: Final = "ada"

Post = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many executors there are, and for how many seconds they are measured."""

    executors: int = 2000
    seconds: float = 60.0


FULL: Final = Sizes()
QUICK: Final = Sizes(2000, 10.0)


def measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """All of it. Raises `WrongResult` if an executor is not registered at the end."""
    asyncio.run(_measure(servers, sizes, found))


async def _measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    async with cluster(servers, "registry", ORCHESTRIX_REGISTRY__ALLOW="127.0.0.0/8") as one:
        await one.start(NODE)
        url = urlsplit(one.nodes[NODE].url)
        await _make_groups(one.nodes[NODE].url)
        orders = Orders()
        where = {"BENCH_HOST": str(url.hostname), "BENCH_HTTP_PORT": str(url.port), **orders.env}
        client = spawn(servers, "executors", [sys.executable, "-m", "tests.bench.load"], where)
        try:
            await asyncio.to_thread(orders.greet, READY)
            await _with(servers, one, orders, sizes, found)
        finally:
            orders.close()
            servers.run.kill(client)


async def _with(servers: Servers, one: Cluster, orders: Orders, sizes: Sizes, found: Findings) -> None:
    pids = {"node": one.nodes[NODE].process.pid, "database": servers.postgres.pid}
    idle = Meter(pids)
    await holds(lambda: True, during=sizes.seconds / 4)
    _note(found, "without executors", idle)
    first = [(REGISTER, _body(number, 0)) for number in range(sizes.executors)]
    await asyncio.to_thread(orders.ask, "paced", posts=first, rate=JOINING_RATE, fresh=False)
    rate = sizes.executors / INTERVAL_S
    posts = _heartbeats(sizes.executors)
    for how, fresh in (("connections kept", False), ("a connection each", True)):
        some = list(islice(posts, round(rate * sizes.seconds)))
        meter = Meter(pids)
        answer = await asyncio.to_thread(orders.ask, "paced", posts=some, rate=rate, fresh=fresh)
        case = f"{sizes.executors:,} executors every {INTERVAL_S:g} s, {how}"
        for process, percent in _note(found, case, meter).items():
            found.bars.append(bars.heard(process, case, percent))
        found.figure(f"heartbeat answered, {how}", answer["ms"])
    await asyncio.to_thread(_check, servers, sizes.executors)


def _note(found: Findings, case: str, meter: Meter) -> dict[str, float]:
    """The per cent of a core that each process has used."""
    used = {process: ms / meter.seconds / 10 for process, ms in meter.read().items()}
    for process, percent in used.items():
        found.figure(f"{process}, {case}", [percent], "% of a core")
    return used


def _heartbeats(executors: int) -> Iterator[Post]:
    """Of one after the other, for ever; now and then one leaves, and a new process takes its address over."""
    starts, left, sent = dict.fromkeys(range(executors), 0), 0, 0
    while True:
        for number in range(executors):
            sent += 1
            if sent % CHANGE_EVERY == 0:
                left = number
                yield DEREGISTER, _body(number, starts[number])
            elif sent % CHANGE_EVERY == CHANGE_EVERY // 2:
                starts[left] += 1
                yield REGISTER, _body(left, starts[left])
            else:
                yield REGISTER, _body(number, starts[number])


def _body(number: int, start: int) -> str:
    more: dict[str, Any] = {"state": "UP", "weight": 1, "load": number % 7 / 10, "runs": []}
    who = {"registryGroup": "EXECUTOR", "registryKey": _app(number % APPS), "instance": f"process-{number}-{start}"}
    return json.dumps({**who, "registryValue": f"http://127.1.{number // 250}.{number % 250 + 1}:9999", **more})


def _app(number: int) -> str:
    return f"app-{number:02}"


async def _make_groups(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        for number in range(APPS):
            answer = await http.put(f"{url}/registry/groups/{_app(number)}", json={"addressType": "AUTO"})
            assert answer.status_code == 200, answer.text


def _check(servers: Servers, executors: int) -> None:
    query = (
        "SELECT count(*) AS executors, count(DISTINCT registry_key) AS apps FROM job_registry"
        " WHERE update_time > now() - interval '100 seconds'"
    )
    (row,) = servers.rows("registry", query)
    silent = servers.rows("registry", "SELECT count(*) AS n FROM registry_removed WHERE reason = 'silent'")[0]["n"]
    if row["executors"] < executors - 2 or row["apps"] != APPS or silent:
        raise WrongResult(f"{dict(row)} of {executors} executors are registered; {silent} were removed")
