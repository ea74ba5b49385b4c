"""Does the registry keep living executors while nodes, the database or the broker are away, and remove dead ones?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fault.executors import SLACK_S, Address, RegistryWorld, Row
from tests.fault.proxy import Proxy
from tests.processes import Processes
from tests.support import eventually, holds

NEXT_LEADER_S = 6.0
"""Until the next leader's duties begin, after which it listens for one dead time."""
AN_HOUR_S = 3600
SHIFTED_CLOCK = """
import time
from pathlib import Path

right = time.time
time.time = lambda: right() + float(Path({file!r}).read_text())
"""


@dataclass
class Five:
    """Five executors of one app, and the links by which they reach the nodes."""

    registry: RegistryWorld
    links: list[Proxy]
    living: list[Address]
    dead: list[Address]
    before: Mapping[Address, Row]

    async def die(self) -> Address:
        """One of them is killed."""
        address = self.living.pop()
        self.dead.append(address)
        await asyncio.to_thread(self.registry.running[address].kill9)
        return address

    async def beat(self) -> None:
        """Waits for a heartbeat of each that lives."""
        times = self.registry.times
        await self.registry.all_beat(self.living, within=times.heartbeat + 2 * times.timeout + SLACK_S)

    async def check(self) -> None:
        """Those who live were there all the time, and those who died were removed, each once."""
        await self.registry.has("shop", self.living)
        await self.registry.check_stayed(self.living, self.before)
        assert await self.registry.removed() == [(address, "silent") for address in self.dead]

    async def all_silent(self) -> None:
        """Waits until none was heard for `outage_s`; meanwhile each is registered as it was, and nobody is removed."""
        registry, before = self.registry, await self._who()
        query = "SELECT extract(epoch FROM now() - max(update_time))::float FROM job_registry"

        async def long_enough() -> bool:
            now = await self._who()
            if now != before:
                pytest.fail(f"{before} became {now}")
            ((silence,),) = await registry.sql(query)
            return bool(silence >= self.outage_s)

        await eventually(long_enough, deadline=self.outage_s + SLACK_S, every=0.2, message="no heartbeat gets through")

    @asynccontextmanager
    async def one_is_late(self) -> AsyncIterator[None]:
        """In the block an outage ends; one of them is heard only when a leader has looked at those of the others."""
        registry, late, removed = self.registry, self.registry.running[self.living[-1]], await self.registry.removed()
        latest = "SELECT max(update_time) FROM job_registry"
        led = "SELECT 1 FROM leases WHERE lease_until > now()"
        before = await registry.sql(latest)
        late.pause()
        try:
            yield

            async def heard() -> bool:
                return await registry.sql(latest) != before and bool(await registry.sql(led))

            within = NEXT_LEADER_S + registry.times.heartbeat + 2 * registry.times.timeout + SLACK_S
            await eventually(heard, deadline=within, every=0.05, message="a heartbeat and a leader after the outage")
            await holds(lambda: True, during=registry.times.beat)
            assert await registry.removed() == removed, "the reaper has not listened for one dead time"
        finally:
            late.resume()

    async def _who(self) -> tuple[object, ...]:
        rows = await self.registry.rows()
        return {one: (row["instance"], row["first_seen"]) for one, row in rows.items()}, await self.registry.removed()

    @property
    def outage_s(self) -> float:
        """How long something is away: two minutes, with the default times."""
        return self.registry.times.dead * 4 / 3


async def five_of(registry: RegistryWorld) -> Five:
    """Five that prefer the first node."""
    links = [registry.link(url) for url in registry.world.urls]
    await registry.make_group("shop")
    admins = [f"http://127.0.0.1:{link.port}" for link in links]
    made = [registry.start("shop", admins=admins) for _ in range(5)]
    await registry.has("shop", made)
    return Five(registry, links, made, [], await registry.rows())


@pytest.mark.req("S2-15", "S2-16", "S2-31", "S2-63")
async def test_nodes_are_away(registry: RegistryWorld) -> None:
    await registry.up()
    five = await five_of(registry)
    await _nodes_go(five)
    await five.check()


async def _nodes_go(five: Five) -> None:
    await _first_admin_hangs(five)
    await _leader_dies(five)
    await _all_out_of_reach(five)
    await _all_killed(five)


async def _first_admin_hangs(five: Five) -> None:
    """Each tries it once: the second one takes that heartbeat, and the next ones."""
    link, registry = five.links[0], five.registry
    link.black_hole()
    await five.beat()
    await five.beat()
    tried = [registry.running[one].log().count(f"http://127.0.0.1:{link.port}: ") for one in five.living]
    assert tried == [1] * 5
    link.lose()


async def _leader_dies(five: Five) -> None:
    """So does one executor. The next leader removes that one, and no other."""
    registry = five.registry
    leader = await registry.leader()
    node = registry.world.nodes[leader]
    node.process.kill9()
    dead = await five.die()
    await registry.is_removed(dead, after=NEXT_LEADER_S + registry.times.dead)
    assert await registry.leader() != leader
    node.restart()
    await registry.world.ready()
    await five.beat()


async def _all_out_of_reach(five: Five) -> None:
    """No heartbeat gets through for longer than an executor may be silent, while somebody leads."""
    for link in five.links:
        link.refuse()
        link.reset()
    await five.all_silent()
    for link in five.links:
        link.heal()
    await five.beat()
    await _still_removed(five)


async def _all_killed(five: Five) -> None:
    """No node runs for that long."""
    nodes = five.registry.world.nodes
    for node in nodes:
        node.process.kill9()
    await five.all_silent()
    for node in nodes:
        node.restart()
    await five.registry.world.ready()
    await five.beat()


async def _still_removed(five: Five) -> None:
    """Whoever dies after an outage is removed: at the latest when the leader has listened for one dead time."""
    await five.registry.is_removed(await five.die(), after=NEXT_LEADER_S + five.registry.times.dead)
    await five.registry.has("shop", five.living)


@pytest.mark.req("S2-64")
async def test_the_database_and_the_broker_are_away(registry: RegistryWorld) -> None:
    await registry.up()
    five = await five_of(registry)
    await _servers_go(five)
    await five.check()


async def _servers_go(five: Five) -> None:
    await _without_database(five)
    await _without_broker(five)


async def _without_database(five: Five) -> None:
    """Heartbeats are refused with 503; groups are shown as they were. One executor dies meanwhile."""
    registry = five.registry
    nodes = registry.world.nodes
    for node in nodes:
        node.database.refuse()
        node.database.reset()
    for url in registry.world.urls:
        answer = await registry.beat(url, "shop", five.living[0])
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) > 0
    shown = await registry.group("shop", node=1)
    assert shown["asOf"]
    assert sorted(shown["addressList"]) == sorted(five.living)
    dead = await five.die()
    await five.all_silent()
    for node in nodes:
        node.heal()
    await five.beat()
    assert "503" in registry.running[five.living[0]].log()
    await registry.is_removed(dead, after=five.outage_s + registry.times.dead + NEXT_LEADER_S)


@pytest.mark.req("S2-64")
async def test_the_database_hangs(registry: RegistryWorld) -> None:
    await registry.up()
    five = await five_of(registry)
    await _database_hangs(five)
    await five.check()


async def _database_hangs(five: Five) -> None:
    """Connections stay open and nothing is answered. A heartbeat is refused, or taken when the database is back."""
    registry, first = five.registry, five.living[0]
    nodes, instance = registry.world.nodes, five.before[five.living[0]]["instance"]
    registry.http.timeout = 60  # a node waits 15 s for a statement, and a heartbeat may have to wait for the one before
    for node in nodes:
        node.database.black_hole()
    asked = [asyncio.create_task(registry.beat(node.url, "shop", first, instance)) for node in nodes]
    dead = await five.die()
    await five.all_silent()
    async with five.one_is_late():
        for node in nodes:
            node.heal()
    for answer in await asyncio.gather(*asked):
        print(f"a heartbeat without an answer of the database: {answer.status_code}, {answer.elapsed}")
        assert answer.status_code == 200 or int(answer.headers["Retry-After"]) > 0, answer.text
    await five.beat()
    assert "/api/registry: " in registry.running[first].log(), "it was not heard"
    await registry.is_removed(dead, after=five.outage_s + registry.times.dead + NEXT_LEADER_S)


async def _without_broker(five: Five) -> None:
    """The registry needs none: heartbeats are taken, and whoever dies is removed."""
    nodes = five.registry.world.nodes
    for node in nodes:
        node.broker.refuse()
        node.broker.reset()
    await five.beat()
    dead = await five.die()
    await five.registry.is_removed(dead, after=NEXT_LEADER_S + five.registry.times.dead)
    for node in nodes:
        node.heal()
    await five.registry.world.ready()
    await five.beat()


async def test_the_clock_of_one_node_is_an_hour_off(
    registry: RegistryWorld, programs: Processes, tmp_path: Path
) -> None:
    """It leads with a clock that is fast, then follows with one that is slow."""
    file, folder = tmp_path / "seconds", tmp_path / "shifted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SHIFTED_CLOCK.format(file=str(file)))
    file.write_text(str(AN_HOUR_S))
    registry.world.system.processes = programs  # a forked process has its modules already
    await registry.start_node(0, PYTHONPATH=str(folder))
    await registry.start_node(1)
    five = await five_of(registry)
    await _clock_is_off(five, file)
    await five.check()


async def _clock_is_off(five: Five, file: Path) -> None:
    registry, times = five.registry, five.registry.times
    assert await registry.leader() == 0
    shifted = registry.world.nodes[0]
    await _heard_by_both(five)
    await registry.is_removed(await five.die(), after=times.dead)
    shifted.process.terminate()
    assert await shifted.process.exited() == 0
    file.write_text(str(-AN_HOUR_S))
    shifted.restart()
    await registry.world.ready()
    assert await registry.leader() == 1
    await _heard_by_both(five)
    await _still_removed(five)


async def _heard_by_both(five: Five) -> None:
    """Each executor's heartbeats go to the one node for a while, then to the other."""
    for link in five.links:
        link.refuse()
        link.reset()
        await five.beat()
        link.heal()

    async def healthy() -> bool:
        shown = (await five.registry.group("shop"))["executors"]
        return {one["state"] for one in shown if one["address"] in five.living} == {"HEALTHY"}

    await eventually(healthy, deadline=five.registry.times.heartbeat + SLACK_S, message="all are healthy")
