"""How does a fault test run executors as processes, and see what the nodes and the database say of them?"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.documents import ROOT, block
from tests.fault.proxy import Proxy
from tests.fault.world import World
from tests.processes import Process, Processes
from tests.servers.run import Run
from tests.support import NO_TLS, eventually, free_port

PAGE: Final = ROOT / "docs" / "executors.md"
TIMES: Final = "HEARTBEAT_S, TIMEOUT_S = 30.0, 3.0"
REPORT: Final = '"weight": 1'
SLACK_S: Final = 4.0
"""What a busy machine adds to a time."""
CLUSTER_S: Final = {
    "ORCHESTRIX_CLUSTER__LEASE": "4",
    "ORCHESTRIX_CLUSTER__RENEW": "1",
    "ORCHESTRIX_CLUSTER__HEARTBEAT": "1",
    "ORCHESTRIX_CLUSTER__DEAD": "4",
    "ORCHESTRIX_CLUSTER__PRESENCE": "0.5",
}
"""A leader's successor is there within seconds, whatever the executors' times."""

NAMES: Final = ("ada", "bob")
"""The nodes."""

Row = dict[str, Any]
Address = str


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: between an executor's heartbeats and for an admin's answer; then the settings of the nodes.

    An executor waits from the answer on, which comes up to half a second late: so the nodes expect less of the scaled
    one than it does.
    """

    heartbeat: float
    timeout: float
    beat: float
    dead: float
    sweep: float

    @property
    def env(self) -> Mapping[str, str]:
        """The settings of a node."""
        return {
            "ORCHESTRIX_REGISTRY__BEAT": str(self.beat),
            "ORCHESTRIX_REGISTRY__DEAD": str(self.dead),
            "ORCHESTRIX_REGISTRY__SWEEP": str(self.sweep),
            "ORCHESTRIX_REGISTRY__PROBE": str(self.beat),
            "ORCHESTRIX_REGISTRY__CALL_TIMEOUT": str(self.timeout),
            "ORCHESTRIX_REGISTRY__ALLOW": "127.0.0.0/8",
            "ORCHESTRIX_GIT__PROVIDER": "none",
            **CLUSTER_S,
        }


SCALED: Final = Times(heartbeat=0.5, timeout=1.0, beat=1.5, dead=4.0, sweep=1.5)
REAL: Final = Times(heartbeat=30.0, timeout=3.0, beat=30.0, dead=90.0, sweep=30.0)


class Executors(Processes):
    """Runs the executor of docs/executors.md, each process with an address of its own."""

    def __init__(self, run: Run, folder: Path, times: Times) -> None:
        super().__init__(run, folder)
        self.links: list[Proxy] = []
        self._made = run, folder
        code = block(PAGE, "python", "ThreadingHTTPServer")
        assert TIMES in code
        assert REPORT in code
        self._code = code.replace(TIMES, f"HEARTBEAT_S, TIMEOUT_S = {times.heartbeat}, {times.timeout}")

    def execute(self, app: str, address: Address, admins: Sequence[str], reports: str = REPORT) -> Process:
        """Starts one. `reports` are the fields of its heartbeats that the routing knows."""
        run, folder = self._made
        name = f"executor-{len(self._all) + 1}"
        script = folder / f"{name}.py"
        script.write_text(self._code.replace(REPORT, reports))
        command = (sys.executable, "-I", "-S", str(script), app, address, ",".join(admins))
        process = Process(run, name, command, {"PATH": os.environ["PATH"]}, folder, folder / f"{name}.log")
        self._all.append(process)
        return process

    def close(self) -> None:
        """Ends all of them, then their links: an executor that connects meanwhile would leave a connection open."""
        super().close()
        for link in self.links:
            link.close()


class RegistryWorld:
    """Two nodes, and the executors that register with them."""

    def __init__(self, world: World, executors: Executors, times: Times) -> None:
        self.world, self.times = world, times
        self.running: dict[Address, Process] = {}
        self._executors = executors
        self.http = httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=30)
        self._database = create_async_engine(world.system.database_url, pool_size=1, max_overflow=0)

    async def close(self) -> None:
        """Closes the test's own connections."""
        await self.http.aclose()
        await self._database.dispose()

    async def sql(self, query: str) -> list[Any]:
        """The rows of a query. Its one connection is kept: while the database hangs, those of the nodes fill it."""
        async with self._database.connect() as connection:
            return list((await connection.execute(text(query))).all())

    async def up(self) -> None:
        """Starts the nodes."""
        await asyncio.gather(self.start_node(0), self.start_node(1))

    async def start_node(self, place: int, **env: str) -> None:
        """Starts one, with settings of its own."""
        await self.world.up(workers=0, env={**self.times.env, "ORCHESTRIX_NODE_ID": NAMES[place], **env})

    def link(self, url: str) -> Proxy:
        """A link to a node for executors."""
        self._executors.links.append(Proxy.to(url))
        return self._executors.links[-1]

    def start(self, app: str, *, address: Address = "", admins: Sequence[str] = (), reports: str = REPORT) -> Address:
        """Starts an executor, by default at a new address and with both nodes as admins; its address."""
        address = address or f"http://127.0.0.1:{free_port()}"
        self.running[address] = self._executors.execute(app, address, admins or self.world.urls, reports)
        return address

    async def joined(self, app: str, count: int, *, admins: Sequence[str] = ()) -> list[Address]:
        """Starts so many executors, and waits until the group has them; half of them prefer the second node."""
        urls = list(admins or self.world.urls)
        made = [self.start(app, admins=urls[:: 1 - 2 * (number % 2)]) for number in range(count)]
        await self.has(app, made)
        return made

    async def make_group(self, app: str, addresses: Sequence[Address] | None = None) -> None:
        """A group: AUTO, or MANUAL with these addresses."""
        more = {"addressType": "AUTO"} if addresses is None else {"addressList": list(addresses)}
        answer = await self.http.put(f"{self.world.urls[0]}/registry/groups/{app}", json=more)
        assert answer.status_code == 200, answer.text

    async def group(self, app: str, *, node: int = 0) -> Row:
        """`GET /registry/groups/{app}`."""
        answer = await self.http.get(f"{self.world.urls[node]}/registry/groups/{app}")
        assert answer.status_code == 200, answer.text
        found: Row = answer.json()
        return found

    async def route(self, app: str, strategy: str, *, node: int = 0, **more: Any) -> httpx.Response:
        """`POST /registry/route`."""
        url = f"{self.world.urls[node]}/registry/route"
        return await self.http.post(url, params={"app": app}, json={"strategy": strategy, **more})

    async def has(self, app: str, addresses: Collection[Address], *, within: float = 0.0) -> None:
        """Waits until every node says that these are the group's addresses."""
        nodes = [place for place, node in enumerate(self.world.nodes) if node.alive]

        async def same() -> bool:
            found = [(await self.group(app, node=node))["addressList"] for node in nodes]
            assert all(sorted(one) == sorted(addresses) for one in found), found
            return True

        message = f"{app} has {sorted(addresses)}"
        await eventually(same, deadline=within or self.times.heartbeat + SLACK_S, every=0.05, message=message)

    async def beat(self, url: str, app: str, address: Address, instance: str | None = None) -> httpx.Response:
        """A heartbeat at `url`, as if it came from that executor."""
        who = {"registryGroup": "EXECUTOR", "registryKey": app, "registryValue": address, "instance": instance}
        return await self.http.post(f"{url}/api/registry", json=who)

    async def rows(self) -> dict[Address, Row]:
        """The registrations in the database."""
        query = "SELECT registry_value, instance, first_seen, update_time FROM job_registry"
        return {row.registry_value: dict(row._mapping) for row in await self.sql(query)}

    async def removed(self) -> list[tuple[Address, str]]:
        """Who was removed and why, in the order of time."""
        found = await self.sql("SELECT registry_value, reason FROM registry_removed ORDER BY id")
        return [(row[0], row[1]) for row in found]

    async def all_beat(self, addresses: Collection[Address], *, within: float) -> None:
        """Waits until a heartbeat of each has come after now."""
        since = (await self.sql("SELECT now() AS now"))[0].now

        async def heard() -> bool:
            rows = await self.rows()
            return all(one in rows and rows[one]["update_time"] > since for one in addresses)

        await eventually(heard, deadline=within, every=0.1, message="a heartbeat of each executor")

    async def check_stayed(self, addresses: Collection[Address], before: Mapping[Address, Row]) -> None:
        """These are registered since `before`, each by the same process, and were never removed in between."""
        now = await self.rows()
        same = ("instance", "first_seen")
        found = {address: [one[address][name] for one in (before, now) for name in same] for address in addresses}
        assert all(values[:2] == values[2:] for values in found.values()), found
        assert not {address for address, _ in await self.removed()} & set(addresses)

    async def is_removed(self, address: Address, *, after: float = 0.0) -> None:
        """Waits until the reaper has removed it: not before the dead time, and soon after it, or `after` s later."""

        async def gone() -> Any:
            query = "SELECT extract(epoch FROM removed_at - last_seen)::float FROM registry_removed WHERE"
            where = f" reason = 'silent' AND registry_value = '{address}'"
            return address not in await self.rows() and await self.sql(query + where)

        latest = self.times.dead + self.times.sweep + SLACK_S + after
        ((silence,),) = await eventually(gone, deadline=latest, every=0.1, message=f"{address} is removed")
        assert self.times.dead <= silence < latest, f"{address} was removed after {silence:.1f} s"
        print(f"removed {silence:.2f} s after its last heartbeat")

    async def leader(self) -> int:
        """The place of the node that leads."""

        async def led() -> str | None:
            node = next(one for one in self.world.nodes if one.alive)
            name: str | None = (await self.http.get(f"{node.url}/cluster")).json()["leader"]
            return name

        return NAMES.index(str(await eventually(led, deadline=20, message="a node leads")).rpartition("-")[0])
