"""Are executors that are silent asked by the right node, and passed over while they give no answer?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from orchestrix.config.registry import RegistrySettings
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.addresses import ExecutorAddress
from orchestrix.domain.registry.routing import Strategy
from orchestrix.domain.registry.suspicion import Executor, Suspicion
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import executor_jobs
from orchestrix.persistence.registry import registrations, suspicions
from orchestrix.persistence.registry.registrations import DRAINING, Heartbeat
from orchestrix.registry.directory import ExecutorView, RegistryDirectory
from orchestrix.registry.prober import ExecutorProber
from orchestrix.registry.router import ExecutorRouter, RouteRequest
from orchestrix.registry.suspects import SuspicionView
from tests.conformance.store.test_jobs import owned, running, stored
from tests.fakes.time import Shifted
from tests.integration.jobs.rows import joined, stopped
from tests.integration.registry.build import ONE, SHOP, THREE, TWO, group_of, record

SETTINGS = RegistrySettings(beat=30.0, dead=90.0, probe=30.0)
ADA, BOB, CYD = "ada", "bob", "cyd"


@dataclass
class Node:
    """A coordinator with its prober. It gets no answer from the addresses in `deaf`."""

    name: str
    database: Database
    deaf: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    id: str | None = None
    prober: ExecutorProber = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.name
        self.prober = ExecutorProber(self.database, SETTINGS, self._healthy, lambda: self.id)

    async def _healthy(self, app: str, address: ExecutorAddress) -> str | None:
        self.asked.append(str(address))
        return "no connection" if str(address) in self.deaf else None

    async def look(self) -> list[str]:
        """One look and what follows; whom it asked."""
        self.asked.clear()
        await self.prober.check()
        await self.prober.asked()
        asked = list(self.asked)
        await self.prober.check()
        return asked

    async def picks(self, app: str = SHOP) -> set[str]:
        """What ROUND_ROBIN gives on this node."""
        router = ExecutorRouter(self.database, lambda: SuspicionView(self.id, SETTINGS.probe))
        found = await router.route(app, RouteRequest(Strategy.ROUND_ROBIN, count=6))
        return {one.addresses[0] for one in found}


@dataclass
class Nodes:
    """The coordinators."""

    database: Database
    all: list[Node] = field(default_factory=list)

    async def add(self, *names: str) -> list[Node]:
        for name in names:
            await joined(self.database, name)
            self.all.append(Node(name, self.database))
        return self.all

    async def look(self) -> dict[str, list[str]]:
        """All look, one after the other; whom each has asked."""
        return {one.name: await one.look() for one in self.all}

    def deaf(self, *addresses: str) -> None:
        for one in self.all:
            one.deaf = set(addresses)

    async def suspected(self) -> dict[Executor, set[str]]:
        async with self.database.read() as connection:
            rows = await suspicions.listed(connection)
        found: dict[Executor, set[str]] = {}
        for one in rows:
            found.setdefault(one.executor, set()).add(one.node)
        return found


@pytest.fixture
def nodes(database: Database) -> Nodes:
    return Nodes(database)


async def beat(database: Database, *addresses: str, app: str = SHOP) -> None:
    await record(database, *(Heartbeat(app, one, "a") for one in addresses))


async def at_work(database: Database) -> JobRow:
    """An attempt that was given to the first executor and was heard of long ago."""
    job = await running(database, queue=None, executor_group=SHOP, routing="FIRST")
    old = database.now() - timedelta(seconds=60)
    return await stored(database, job, replace(job, address=ONE, worker_beat_at=old, version=job.version + 1))


async def shown(database: Database, address: str) -> ExecutorView:
    [app] = (await RegistryDirectory(database, SETTINGS).view()).apps
    return next(one for one in app.executors if one.address == address)


async def silent(nodes: Nodes, time: Shifted, count: int = 3) -> list[Node]:
    """Nodes, and a group of three executors of which the first has missed a heartbeat and gives no answer."""
    found = await nodes.add(*(ADA, BOB, CYD)[:count])
    await beat(nodes.database, ONE, TWO, THREE)
    await group_of(nodes.database)
    time.advance(20)
    await beat(nodes.database, TWO, THREE)
    assert not any((await nodes.look()).values()), "nobody is late"
    time.advance(14)
    nodes.deaf(ONE)
    return found


async def test_who_misses_a_heartbeat_is_asked_by_one_node_and_one_more_confirms(nodes: Nodes, time: Shifted) -> None:
    await silent(nodes, time)
    asked = await nodes.look()
    asked = {name: asked[name] + again for name, again in (await nodes.look()).items()}
    assert sorted(map(len, asked.values())) == [0, 1, 1]
    assert await nodes.suspected() == {(SHOP, ONE): {name for name, one in asked.items() if one}}
    assert [await one.picks() for one in nodes.all] == [{TWO, THREE}] * 3
    assert await ExecutorRouter(nodes.database).route(SHOP, RouteRequest(Strategy.ROUND_ROBIN, count=6))
    view = await shown(nodes.database, ONE)
    assert set(view.suspected_by) == {name for name, one in asked.items() if one}
    assert view.suspected_since is not None
    assert (await shown(nodes.database, TWO)).suspected_by == ()


async def test_one_nodes_suspicion_counts_for_it_alone(nodes: Nodes, time: Shifted) -> None:
    """The others get an answer: that node is cut off."""
    found = await silent(nodes, time)
    nodes.deaf()
    found[1].prober.doubt(SHOP, ONE)
    found[1].deaf = {ONE}
    for _ in range(3):
        await nodes.look()
        time.advance(31)
        await beat(nodes.database, TWO, THREE)
    assert await nodes.suspected() == {(SHOP, ONE): {BOB}}
    assert [await one.picks() for one in nodes.all] == [{ONE, TWO, THREE}, {TWO, THREE}, {ONE, TWO, THREE}]


async def test_the_group_keeps_who_is_suspected(nodes: Nodes, time: Shifted) -> None:
    await silent(nodes, time)
    await nodes.look()
    await nodes.look()
    view = (await RegistryDirectory(nodes.database, SETTINGS).view()).apps[0]
    assert view.group is not None
    assert set(view.group.addresses) == {ONE, TWO, THREE}


@pytest.mark.parametrize("sign", ["heartbeat", "answer", "report"])
async def test_it_ends_with_a_heartbeat_an_answer_or_a_report(nodes: Nodes, time: Shifted, sign: str) -> None:
    job = await at_work(nodes.database)
    await silent(nodes, time)
    await nodes.look()
    await nodes.look()
    assert len((await nodes.suspected())[SHOP, ONE]) == 2
    await nodes.look()
    assert len((await nodes.suspected())[SHOP, ONE]) == 2, "what is not over stays"
    time.advance(31)
    match sign:
        case "heartbeat":
            await beat(nodes.database, ONE)
            assert await nodes.all[2].picks() == {ONE, TWO, THREE}, "it counts at once"
        case "answer":
            nodes.deaf()
        case "report":
            name, now = str(job.history_id), nodes.database.now()
            await nodes.database.run(lambda tx: executor_jobs.heard(tx, [name], now))
    await beat(nodes.database, TWO, THREE)
    await nodes.look()
    nodes.deaf()
    assert await nodes.suspected() == {}
    assert [await one.picks() for one in nodes.all] == [{ONE, TWO, THREE}] * 3


async def test_where_all_give_no_answer_all_are_used(nodes: Nodes, time: Shifted) -> None:
    await silent(nodes, time)
    time.advance(20)
    nodes.deaf(ONE, TWO, THREE)
    await nodes.look()
    await nodes.look()
    assert {len(one) for one in (await nodes.suspected()).values()} == {2}
    assert len(await nodes.suspected()) == 3
    assert await nodes.all[0].picks() == {ONE, TWO, THREE}


async def test_who_has_its_work_in_hand_asks_first(nodes: Nodes, time: Shifted) -> None:
    for name in (BOB, CYD):
        await owned(nodes.database, name, await at_work(nodes.database))
    await silent(nodes, time)
    nodes.deaf()
    assert await nodes.look() == {ADA: [], BOB: [ONE], CYD: [ONE]}
    assert await nodes.suspected() == {}
    await stopped(nodes.database, BOB, "DEAD")
    await stopped(nodes.database, CYD, "LEFT")
    time.advance(31)
    await beat(nodes.database, TWO, THREE)
    assert (await nodes.look())[ADA] == [ONE], "the owners are gone"


async def test_a_silent_one_that_answers_is_asked_every_probe_and_no_suspect(nodes: Nodes, time: Shifted) -> None:
    await silent(nodes, time, 1)
    nodes.deaf()
    [ada] = nodes.all
    assert await ada.look() == [ONE]
    assert await ada.look() == []
    time.advance(29)
    await beat(nodes.database, TWO, THREE)
    assert await ada.look() == []
    time.advance(2)
    assert await ada.look() == [ONE]
    assert await nodes.suspected() == {}


async def test_a_failed_call_is_followed_by_a_probe_at_once(nodes: Nodes, time: Shifted) -> None:
    ada, bob = await nodes.add(ADA, BOB)
    await beat(nodes.database, ONE, TWO)
    await group_of(nodes.database)
    nodes.deaf(ONE)
    ada.prober.doubt(SHOP, ONE)
    ada.prober.doubt(SHOP, TWO)
    assert set(await ada.look()) == {ONE, TWO}
    assert await nodes.suspected() == {(SHOP, ONE): {ADA}}
    assert await ada.picks() == {TWO}
    assert await bob.picks() == {ONE, TWO}
    ada.prober.doubt(SHOP, ONE)  # who is a suspect already is asked in its turn
    assert await ada.look() == []
    ada.prober.answered(SHOP, ONE)
    await ada.look()
    assert await nodes.suspected() == {}


async def test_an_address_that_never_registered_is_asked_only_after_a_failed_call(nodes: Nodes, time: Shifted) -> None:
    [ada] = await nodes.add(ADA)
    await group_of(nodes.database, [ONE, TWO])
    nodes.deaf(ONE)
    time.advance(500)
    assert await ada.look() == []
    ada.prober.doubt(SHOP, ONE)
    ada.prober.doubt(SHOP, THREE)
    assert await ada.look() == [ONE]
    assert await ada.picks() == {TWO}
    time.advance(31)
    assert await ada.look() == [ONE]
    await group_of(nodes.database, [TWO])
    time.advance(31)
    assert await ada.look() == []
    assert await nodes.suspected() == {}


async def test_a_second_suspicion_after_a_sign_of_life_counts_from_then_on(nodes: Nodes, time: Shifted) -> None:
    await silent(nodes, time, 1)
    [ada] = nodes.all
    await ada.look()
    time.advance(31)
    await beat(nodes.database, ONE, TWO, THREE)
    time.advance(1)
    ada.prober._suspects = ()  # as where the call failed before the heartbeat was read
    ada.prober.doubt(SHOP, ONE)
    await ada.look()
    assert await nodes.suspected() == {(SHOP, ONE): {ADA}}
    assert await ada.picks() == {TWO, THREE}


async def test_a_node_that_is_gone_suspects_nobody(nodes: Nodes, time: Shifted) -> None:
    ada, bob, _ = await silent(nodes, time)
    await nodes.look()
    await nodes.look()
    [*suspecting] = (await nodes.suspected())[SHOP, ONE]
    await stopped(nodes.database, suspecting[0], "DEAD")
    left = next(one for one in nodes.all if one.name not in suspecting)
    await left.prober.check()
    assert await nodes.suspected() == {(SHOP, ONE): {suspecting[1]}}
    time.advance(100)
    await left.prober.check()
    assert await nodes.suspected() == {}, "it is not repeated any more"
    assert {ada.name, bob.name} & set(suspecting)


async def test_a_node_that_is_no_member_of_the_cluster_asks_nobody(nodes: Nodes, time: Shifted) -> None:
    await silent(nodes, time, 1)
    [ada] = nodes.all
    ada.id = None
    assert await ada.look() == []


async def test_a_drained_or_draining_one_is_asked_like_the_others(nodes: Nodes, time: Shifted) -> None:
    """It may have work in hand."""
    [ada] = await nodes.add(ADA)
    await record(nodes.database, Heartbeat(SHOP, ONE, "a", DRAINING))
    time.advance(34)
    nodes.deaf(ONE)
    assert await ada.look() == [ONE]
    assert await nodes.suspected() == {(SHOP, ONE): {ADA}}


async def test_suspicions_are_repeated_ended_and_pruned_one_by_one(database: Database) -> None:
    start = database.now()
    later: Callable[[float], timedelta] = lambda seconds: timedelta(seconds=seconds)  # noqa: E731
    one, two = Suspicion(SHOP, ONE, ADA, start, start), Suspicion("läden", TWO, BOB, start, start)
    again = replace(one, since=start + later(5), probed_at=start + later(30))
    await database.run(lambda tx: suspicions.record(tx, [two, one]))
    await database.run(lambda tx: suspicions.record(tx, [again, replace(one, node=CYD)]))
    async with database.read() as connection:
        stays = replace(one, probed_at=again.probed_at)
        assert await suspicions.listed(connection) == [two, stays, replace(one, node=CYD)]
        assert await suspicions.listed(connection, [SHOP]) == [stays, replace(one, node=CYD)]
    await database.run(lambda tx: suspicions.end(tx, [two, again]))
    async with database.read() as connection:
        assert await suspicions.listed(connection) == [stays, replace(one, node=CYD)], "it has begun again meanwhile"
    await database.run(lambda tx: suspicions.prune(tx, start + later(1)))
    async with database.read() as connection:
        assert await suspicions.listed(connection) == [stays]
        late = await registrations.late(connection, start + later(1), 10)
    assert late == []
