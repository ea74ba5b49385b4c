"""Does a cluster know who leads and who lives, over many bad days, and in the times that it promises?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from orchestrix.broker.port import Delivery
from orchestrix.broker.topology import LEADER
from orchestrix.cluster import failure_detector
from orchestrix.domain.leases import Fence, LeaderMode
from orchestrix.domain.nodes import MissingNodes, NodeState
from orchestrix.persistence.cluster import leases
from orchestrix.testing.broker.consumer import MemoryConsumer
from orchestrix.testing.simulation.virtual_time import elapse
from tests.simulation import cluster
from tests.simulation.cluster import Cluster, NodeMember, Simulation
from tests.simulation.unrest import KINDS, end, until

MOST_SHOWN = 5
PARTS = 2
WITHIN = 60


@pytest.fixture(scope="module")
def runs() -> Iterator[Simulation]:
    """Runs seeds."""
    with cluster.simulation() as made:
        yield made


@pytest.mark.req("S0-2", "S0-10", "S0-54", "S0-72")
@pytest.mark.parametrize("part", range(PARTS))
def test_it_is_known_who_leads_and_who_lives(runs: Simulation, scale: Callable[[int, int], int], part: int) -> None:
    seeds = scale(80, 2_000) // PARTS
    failed: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(part * seeds, (part + 1) * seeds):
        outcome = runs.run(seed)
        seen.update(what for line in outcome.trace for what in EXPECTED if EXPECTED[what].search(line))
        if outcome.wrong and len(failed) < MOST_SHOWN:
            failed.append(str(outcome))
    assert not failed, "\n".join(failed)
    absent = sorted(EXPECTED.keys() - seen.keys())
    assert not absent, f"these bad days did not come, so that nothing is said about them: {absent}"


EXPECTED = {f"fault {kind}": re.compile(rf" fault .* s  {kind} +member") for kind in KINDS} | {
    "a process died in the middle": re.compile(r" dies at step \d"),
    "a leader without broker": re.compile(r" term \d+ \S+ alone"),
    "a refused write": re.compile("nothing was written"),
    "somebody missing": re.compile("its presence queue is gone"),
    "somebody silent": re.compile("is considered dead: last heartbeat"),
}


# The times that it promises.

Story = Callable[[Cluster], Coroutine[Any, Any, None]]


def told(runs: Simulation, story: Story) -> Cluster:
    """A story among three nodes that have been there for a minute; nothing may go wrong in it."""
    realm = tried(runs, story)
    assert not realm.witness.wrong
    return realm


def tried(runs: Simulation, story: Story) -> Cluster:
    """The same, whatever goes wrong."""

    async def whole(realm: Cluster) -> None:
        for member in realm.members:
            member.boot()
            await elapse(3.0)
        await elapse(60.0)
        assert realm.is_settled()
        await story(realm)
        assert realm.is_settled() or realm.witness.died
        await end(realm)

    with runs.realm(1) as realm:
        realm.loop.run_until_complete(whole(realm))
        return realm


def leader(realm: Cluster) -> NodeMember:
    found = realm.leader()
    assert isinstance(found, NodeMember)
    return found


def followers(realm: Cluster) -> list[NodeMember]:
    return [member for member in realm.members if member is not realm.leader()]


async def next_term(realm: Cluster, within: float) -> Fence:
    """The next leader's first write in its term."""
    term = realm.witness.terms[-1].term
    wrote = "SELECT 1 FROM handovers WHERE term > ? AND ended_at IS NOT NULL"
    ends = realm.loop.time() + within
    while not realm.file.query(wrote, (term,)):
        assert realm.loop.time() < ends, f"nobody wrote within {within} s"
        await elapse(0.01)
    return realm.witness.terms[-1]


async def state(realm: Cluster, node_id: str, wanted: NodeState, within: float) -> None:
    assert await until(lambda: realm.states()[node_id] == wanted, within), realm.states()


@pytest.mark.req("S0-72")
def test_a_leader_is_killed(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        dead = leader(realm)
        node_id = dead.node_id
        dead.process.kill()
        assert (await next_term(realm, 1.0)).holder != node_id
        await state(realm, node_id, NodeState.DEAD, 5.0)
        assert realm.file.query("SELECT reason FROM handovers WHERE term = 2") == [("lost",)]

    told(runs, story)


def test_a_leader_leaves(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        gone = leader(realm)
        node_id = gone.node_id
        gone.stopping.set()
        assert (await next_term(realm, 0.5)).holder != node_id
        await state(realm, node_id, NodeState.LEFT, 1.0)
        assert realm.file.query("SELECT reason FROM handovers WHERE term = 2") == [("resigned",)]

    told(runs, story)


def test_a_killed_follower_is_missed_by_its_queue(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        dead = followers(realm)[0]
        node_id = dead.node_id
        dead.process.kill()
        await state(realm, node_id, NodeState.DEAD, 5.0)
        assert len(realm.witness.terms) == 1

    told(runs, story)


@pytest.mark.req("S0-54", "S0-67")
def test_two_killed_at_once_are_missed_by_their_silence(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        dead = followers(realm)
        ids = [member.node_id for member in dead]
        for member in dead:
            member.process.kill()
        await elapse(15.0)
        assert {realm.states()[node_id] for node_id in ids} == {"ALIVE"}
        for node_id in ids:
            await state(realm, node_id, NodeState.DEAD, 20.0)

    told(runs, story)


@pytest.mark.parametrize("seconds", [3.0, 60.0])
def test_nobody_dies_of_an_outage_of_the_broker(runs: Simulation, seconds: float) -> None:
    assert told(runs, lambda realm: broker_outage(realm, seconds)).witness.died == []


def test_nobody_dies_of_an_outage_of_the_database(runs: Simulation) -> None:
    assert told(runs, database_outage).witness.died == []


@pytest.mark.parametrize("seconds", [1.0, 25.0])
def test_a_node_without_broker_lives(runs: Simulation, seconds: float) -> None:
    assert told(runs, lambda realm: isolation(realm, seconds)).witness.died == []


async def isolation(realm: Cluster, seconds: float = 25.0) -> None:
    """A follower has no broker for a while, but the database."""
    for broker in followers(realm)[0].brokers:
        broker.refuse_connections(seconds)
    await elapse(60.0)


async def broker_outage(realm: Cluster, seconds: float = 3.0) -> None:
    """A leader without broker leads meanwhile, if it takes long."""
    realm.server.stop()
    await elapse(seconds)
    if seconds > 20:
        row = realm.row()
        assert row is not None
        assert row[1] is LeaderMode.BROKERLESS
        assert realm.leader() is not None
    realm.server.start()
    await elapse(60.0)


async def database_outage(realm: Cluster) -> None:
    """Nobody leads meanwhile."""
    realm.file.fail()
    await elapse(180.0)
    assert realm.leader() is None
    realm.file.recover()
    await elapse(60.0)


def test_a_node_that_was_taken_for_dead_joins_again_as_another(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        frozen = followers(realm)[0]
        node_id, work = frozen.node_id, frozen.work
        frozen.process.freeze()
        await state(realm, node_id, NodeState.DEAD, 45.0)
        frozen.process.unfreeze()
        await elapse(15.0)
        assert work is not None
        assert work.abandoned
        assert frozen.node_id != node_id
        assert realm.states()[frozen.node_id] == "ALIVE"
        assert realm.is_settled()

    told(runs, story)


@pytest.mark.req("S0-10", "S0-8")
def test_a_leader_that_stands_still_is_replaced_and_writes_no_more(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        frozen = leader(realm)
        frozen.process.freeze()
        assert (await next_term(realm, 36.0)).holder != frozen.node_id
        frozen.process.unfreeze()
        await elapse(1.0)
        assert frozen.fence is None

    realm = told(runs, story)
    assert any("nothing was written" in line for line in realm.witness.trace)


@pytest.mark.req("S0-32")
def test_everybody_knows_everybodys_load(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        for count, member in zip((50, 48, 52), realm.members, strict=True):
            assert member.work is not None
            member.work.count = count
        await elapse(11.0)
        assert sorted(load for (load,) in realm.file.query("SELECT job_count FROM nodes")) == [48, 50, 52]

    told(runs, story)


@pytest.mark.req("S0-9", "S0-66")
def test_leases_and_heartbeats_keep_their_times(runs: Simulation) -> None:
    async def story(realm: Cluster) -> None:
        asked = "SELECT name, lease_until FROM leases UNION ALL SELECT id, beat_at FROM nodes"
        changed: Counter[str] = Counter()
        before = dict(realm.file.query(asked))
        for _ in range(610):
            await elapse(0.1)
            now = dict(realm.file.query(asked))
            changed.update(name for name in now if now[name] != before[name])
            before = now
        assert len(changed) == 4
        assert all(times in (5, 6) for times in changed.values()), changed

    told(runs, story)


# Would it find a mistake?

Plant = Callable[[pytest.MonkeyPatch], None]


def term_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A leader's write does not look whether it still leads."""

    async def blind(tx: object, fence: Fence) -> None:
        return

    patch.setattr(leases, "check_fence", blind)


def token_acknowledged_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A token is acknowledged as it comes."""
    receive = MemoryConsumer.receive

    async def early(consumer: MemoryConsumer, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        deliveries = await receive(consumer, limit, linger)
        await consumer.acknowledge([one for one in deliveries if one.queue == LEADER])
        return deliveries

    patch.setattr(MemoryConsumer, "receive", early)


def silence_counts_from_the_last_beat(patch: pytest.MonkeyPatch) -> None:
    """A leader takes what it did not hear for silence."""

    def silent(node: Any, *, now: Any, since: Any, limit: float) -> bool:
        return bool((now - node.beat_at).total_seconds() >= limit)

    patch.setattr(failure_detector, "is_silent", silent)


def whoever_is_missing_is_dead(patch: pytest.MonkeyPatch) -> None:
    """One look is enough, and no heartbeat helps."""
    patch.setattr(MissingNodes, "observe", lambda absences, at, missing: next(iter(missing), None))


PLANTS: dict[Plant, str] = {
    term_not_checked: "I6: a write of",
    token_acknowledged_before_the_commit: "acknowledged a token before",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant: Plant, runs: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next((wrong for seed in range(WITHIN) if (wrong := runs.run(seed).wrong)), [])
    assert any(PLANTS[plant] in one for one in found), f"within {WITHIN} seeds only {found}"


@pytest.mark.parametrize(
    ("plant", "story"),
    [(silence_counts_from_the_last_beat, database_outage), (whoever_is_missing_is_dead, isolation)],
)
def test_a_planted_death_is_found(
    plant: Plant, story: Story, runs: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any("was declared dead, though" in wrong for wrong in tried(runs, story).witness.wrong)
