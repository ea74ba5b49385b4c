"""Do coordinators divide the shards of a service, whichever of them is asked, and whatever ends in between?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrix.broker.topology import SHARD_COORDINATOR
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.grants import shards_of
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import Effect, Event, MemberHeartbeat, MemberLeave, MemberRegistration
from orchestrix.errors import Contention
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.shards import service_store, services, workers
from orchestrix.persistence.shards.service_store import StoredService
from orchestrix.persistence.shards.workers import SignOfLife
from orchestrix.shards import changes, coordinator, heartbeats
from orchestrix.shards.changes import TOO_MANY_SERVICES
from orchestrix.shards.coordinator import ShardCoordinator
from orchestrix.shards.rabbitmq import MemberAnswer, MemberRequest
from tests.support import eventually
from tests.unit.shards.scene import SERVICE, Member, Scene

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def scene(tmp_path: Path, template: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path, template)
    yield made
    await made.stop()
    assert made.wrong == []


async def settled(scene: Scene, count: int = 10, deadline: float = 60.0) -> None:
    await eventually(lambda: scene.all_run(count), deadline=deadline, every=0.1)


async def active(scene: Scene) -> int:
    state = (await scene.stored()).state
    return state.active.number if state.active is not None else 0


@pytest.mark.req("S1-4", "S1-23", "S4-18", "S4-19", "S4-41")
async def test_two_nodes_divide_what_one_window_has_brought(scene: Scene) -> None:
    await scene.node("n-1")
    await scene.node("n-2")
    for worker in ("w-1", "w-2", "w-3"):
        await scene.join(worker)
    await settled(scene, deadline=10.0)
    assert scene.held() == {"w-1": [0, 1, 2, 3], "w-2": [4, 5, 6], "w-3": [7, 8, 9]}
    assert [(one.number, one.state, one.members) for one in await scene.history()] == [(1, "active", 3)]


async def test_a_member_that_leaves_is_replaced_at_once(scene: Scene) -> None:
    await scene.node("n-1")
    one, _ = await scene.join("w-1"), await scene.join("w-2")
    await settled(scene)
    await one.leave()
    await eventually(lambda: scene.held() == {"w-2": list(range(10))}, deadline=6.0, every=0.1)
    assert (await scene.history())[0].cause == "left"


@pytest.mark.req("S1-5", "S1-36")
async def test_a_crashed_member_loses_its_shards_after_the_timeout_and_no_other_does(scene: Scene) -> None:
    await scene.node("n-1")
    await scene.node("n-2")
    one, _ = await scene.join("w-1"), await scene.join("w-2")
    await settled(scene)
    await asyncio.sleep(30)
    await one.crash()
    await asyncio.sleep(8)
    assert scene.held() == {"w-2": list(range(5, 10))}, "not yet: it may be slow"
    await eventually(lambda: scene.held() == {"w-2": list(range(10))}, deadline=20.0, every=0.1)
    newest = (await scene.history())[0]
    assert (newest.cause, newest.cause_worker) == ("inactive", "w-1")


@pytest.mark.req("S1-38")
async def test_routine_heartbeats_are_stored_and_answered_without_a_change_of_the_service(scene: Scene) -> None:
    await scene.node("n-1")
    member = await scene.join("w-1")
    await settled(scene)
    await asyncio.sleep(10)
    before, answers, seq = await scene.stored(), member.answers, member.seq
    await asyncio.sleep(30)
    after = await scene.stored()
    assert after.version == before.version
    assert member.answers - answers == member.seq - seq >= 9
    assert after.state.members["w-1"].seq >= member.seq - 1


async def test_heartbeats_of_many_members_share_a_statement(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    note = workers.note

    async def counted(tx: object, signs: list[object], now: object) -> set[int]:
        sizes.append(len(signs))
        return await note(tx, signs, now)  # type: ignore[arg-type]

    monkeypatch.setattr(workers, "note", counted)
    await scene.node("n-1")
    for number in range(20):
        await scene.join(f"w-{number}", 20)
    await settled(scene, 20)
    await asyncio.sleep(10)
    sizes.clear()
    await asyncio.sleep(30)
    assert 10 * 20 - 20 <= sum(sizes) <= 10 * 20 + 20
    assert len(sizes) <= 31, "not more than one in a second"


async def test_no_answer_says_what_is_not_stored(scene: Scene) -> None:
    """The lease counts from the heartbeat that an answer names: it must be in the database by then."""
    await scene.node("n-1")
    member = await scene.join("w-1")
    await settled(scene)
    for _ in range(200):
        await asyncio.sleep(0.1)
        assert member.answered <= (await scene.stored()).state.members["w-1"].seq


@pytest.mark.req("S4-41")
async def test_a_generation_whose_leader_died_is_begun_again_by_another_node(scene: Scene) -> None:
    one = await scene.node("n-1")
    await scene.join("w-1")
    await eventually(lambda: leads(scene, "n-1"), deadline=5.0, every=0.05)
    scene.clients["n-1"].disconnect()
    await one.stop()
    await scene.node("n-2")
    await settled(scene)
    found = [(one.number, one.state, one.cause, one.leader_id) for one in reversed(await scene.history())]
    assert found == [(1, "superseded", "joined", "n-1"), (2, "active", "abandoned", "n-2")]


async def test_a_node_that_stops_leaves_the_generation_that_it_leads_to_another(scene: Scene) -> None:
    one = await scene.node("n-1")
    await scene.node("n-2")
    await scene.join("w-1")
    await eventually(lambda: leads_pending(scene), deadline=5.0, every=0.05)
    leader = "n-1" if await leads(scene, "n-1") else "n-2"
    (other,) = {"n-1", "n-2"} - {leader}
    assert one is scene.nodes["n-1"]
    await scene.nodes[leader].stop()
    await settled(scene, deadline=6.0)
    found = [(one.number, one.state, one.leader_id) for one in await scene.history()]
    assert found == [(1, "active", other)]


async def leads_pending(scene: Scene) -> bool:
    return await leads(scene, "n-1") or await leads(scene, "n-2")


async def test_services_in_which_nothing_happens_are_not_read_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.node("n-1")
    for number in range(3):
        await scene.join(f"w-{number}")
    await settled(scene)
    await asyncio.sleep(30)
    read, silent = service_store.read_all, workers.silent_services
    reads, looks = list[str](), list[int]()

    async def counted(connection: Connection, names: Collection[str]) -> dict[str, StoredService]:
        reads.extend(names)
        return await read(connection, names)

    async def looked(*arguments: Any) -> set[str]:
        looks.append(1)
        return await silent(*arguments)

    monkeypatch.setattr(service_store, "read_all", counted)
    monkeypatch.setattr(workers, "silent_services", looked)
    await asyncio.sleep(60)
    assert reads == []
    assert 11 <= len(looks) <= 13, "one statement for each check, whatever there is to look at"


async def test_services_without_members_are_pruned_in_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "PRUNE_S", 20.0)
    await scene.node("n-1")
    member = await scene.join("w-1")
    await settled(scene)
    await member.leave()
    await asyncio.sleep(60)
    assert (await scene.stored()).state.members == {}
    monkeypatch.setattr(coordinator, "HISTORY_KEPT", timedelta(0))
    await eventually(lambda: is_gone(scene), deadline=30.0, every=1.0)
    again = await scene.join("w-2")
    await settled(scene)
    assert again.generation > member.generation
    assert await active(scene) == again.generation


async def is_gone(scene: Scene) -> bool:
    async with scene.database.read() as connection:
        return not await services.versions(connection)


async def leads(scene: Scene, node: str) -> bool:
    async with scene.database.read() as connection:
        if not await services.versions(connection):
            return False
    pending = (await scene.stored()).state.pending
    return pending is not None and pending.leader_id == node


@pytest.mark.req("S1-26")
async def test_a_registration_that_is_repeated_is_answered_again_by_any_node(scene: Scene) -> None:
    await scene.node("n-1")
    member = await scene.join("w-1")
    await settled(scene)
    await scene.node("n-2")
    for _ in range(4):
        before = member.answers
        await member.register()
        await eventually(lambda seen=before: member.answers > seen, deadline=2.0, every=0.05)  # type: ignore[misc]
    assert await active(scene) == 1, "nothing has changed"


@pytest.mark.req("S1-21", "S1-22")
async def test_a_changed_count_divides_all_shards_again(scene: Scene) -> None:
    await scene.node("n-1")
    await scene.node("n-2")
    one, two = await scene.join("w-1"), await scene.join("w-2")
    await settled(scene)
    one.count = two.count = 30
    await settled(scene, 30)
    one.count = two.count = 4
    await eventually(lambda: scene.held() == {"w-1": [0, 1], "w-2": [2, 3]}, deadline=30.0, every=0.1)
    assert [one.cause for one in reversed(await scene.history())] == ["joined", "shard count", "shard count"]


async def test_a_stream_of_joins_postpones_nothing(scene: Scene) -> None:
    await scene.node("n-1")
    first = await scene.join("w-00")
    for number in range(1, 12):
        await asyncio.sleep(0.5)
        await scene.join(f"w-{number:02}")
    assert first.generation >= 2, "one each window, not one after the last of them"
    await settled(scene)


async def test_what_cannot_be_read_is_refused_with_the_reason(scene: Scene) -> None:
    await scene.node("n-1")
    member = await scene.join("w-1")
    await member.transport.send(
        messages.REGISTER,
        b'{"type": "register", "data": {"serviceName": "orders", "workerId": "w-1", "maxShardCount": 0}}',
    )
    await eventually(lambda: member.errors, deadline=5.0)
    assert member.errors == ["data.maxShardCount: write 1 or more"]
    await settled(scene)


async def test_one_service_too_many_is_refused_and_leaves_no_row(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_SERVICES", 1)
    await scene.node("n-1")
    member = await scene.join("w-1")
    await settled(scene)
    other = MemberRegistration(worker_id="w-9", instance="i-9", shard_count=3, seq=1)
    await member.transport.send(messages.REGISTER, messages.register("others", other))
    await eventually(lambda: TOO_MANY_SERVICES in member.errors, deadline=5.0)
    async with scene.database.read() as connection:
        assert set(await services.versions(connection)) == {SERVICE}


async def test_a_leave_overtakes_no_heartbeat_that_is_queued(scene: Scene) -> None:
    """Else a plain client, whose messages have no numbers, would be a member again."""
    await scene.node("n-1")
    member = await scene.join("w-1", instance=None)
    await settled(scene)
    await asyncio.sleep(20)
    last = MemberHeartbeat(worker_id="w-1", instance=None, shard_count=10, shards=member.shards)
    for _ in range(2):
        await member.transport.send(messages.HEARTBEAT, messages.heartbeat(SERVICE, last))
    await member.leave()
    await asyncio.sleep(8)
    state = (await scene.stored()).state
    assert state.members == {}
    assert state.active is not None
    assert state.active.shares == {}, "a generation without assignments"


async def handled_by_an_old_memory(scene: Scene, member: Member, change: MemberLeave) -> int:
    """How many answers the member gets to a heartbeat by a node that has not read the change that another has stored.

    The change is another member's leave, or its own.
    """
    old, other = scene.nodes["n-1"], scene.nodes["n-2"]
    reply_to = (await scene.stored()).state.members[member.worker_id].reply_to
    await old._loop.stop()
    for one in scene.members:
        await one._beats.stop()
        if one.worker_id == change.worker_id:
            one.grants = ()
    await asyncio.sleep(2)
    member.follows = False
    results = await other.handle([MemberRequest(messages.leave(SERVICE, change), None, None)])
    await other._transport.send([sent for one in results for sent in one.answers])
    await asyncio.sleep(5)
    before = member.answers
    beat = MemberHeartbeat(
        worker_id=member.worker_id,
        instance=member.instance,
        shard_count=10,
        shards=member.shards,
        seq=member.next(),
        generation=1,
    )
    await old.handle([MemberRequest(messages.heartbeat(SERVICE, beat, member.grants), reply_to, None)])
    await asyncio.sleep(2)
    return member.answers - before


async def test_an_old_memory_does_not_answer_one_that_has_left(scene: Scene) -> None:
    await scene.node("n-1")
    await scene.node("n-2")
    one, _ = await scene.join("w-1"), await scene.join("w-2")
    await settled(scene)
    await asyncio.sleep(10)
    assert await handled_by_an_old_memory(scene, one, MemberLeave("w-1", "i-1")) == 0
    assert "w-1" not in (await scene.stored()).state.members


async def test_what_an_old_memory_cannot_answer_is_answered_from_the_database(scene: Scene) -> None:
    await scene.node("n-1")
    await scene.node("n-2")
    one, _ = await scene.join("w-1"), await scene.join("w-2")
    await settled(scene)
    await asyncio.sleep(10)
    assert await handled_by_an_old_memory(scene, one, MemberLeave("w-2", "i-1")) == 1
    assert (await scene.stored()).state.members["w-1"].seq == one.seq


# Outages.


async def test_heartbeats_that_cannot_be_stored_are_no_silence(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when rows stay locked: the database answers all other questions."""

    async def locked(*arguments: object) -> set[int]:
        raise Contention("rows are locked")

    await scene.node("n-1")
    for number in range(3):
        await scene.join(f"w-{number}")
    await settled(scene)
    await asyncio.sleep(10)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "note", locked)
        await asyncio.sleep(60)
    await settled(scene)
    await asyncio.sleep(30)
    assert await active(scene) == 1


async def outage(scene: Scene, seconds: float) -> None:
    scene.file.up = False
    scene.file.fail()
    await asyncio.sleep(seconds)
    scene.file.up = True


async def test_a_heartbeat_that_could_not_be_stored_at_once_is_answered_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def locked(*arguments: object) -> set[int]:
        raise Contention("rows are locked")

    await scene.node("n-1")
    member = await scene.join("w-1")
    await settled(scene)
    await asyncio.sleep(10)
    await member._beats.stop()
    await asyncio.sleep(2)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "note", locked)
        await member.beat()
        await asyncio.sleep(3)
        assert member.answered < member.seq
    await eventually(lambda: member.answered == member.seq, deadline=8.0)


async def test_an_outage_of_the_database_makes_nobody_inactive(scene: Scene) -> None:
    await scene.node("n-1")
    await scene.node("n-2")
    for number in range(5):
        await scene.join(f"w-{number}")
    await settled(scene)
    await outage(scene, 60)
    await settled(scene)
    await asyncio.sleep(60)
    assert await active(scene) == 1
    assert scene.all_run()


async def test_a_node_without_its_database_leaves_the_members_to_the_others(scene: Scene) -> None:
    await scene.node("n-1")
    await scene.node("n-2")
    for number in range(5):
        await scene.join(f"w-{number}")
    await settled(scene)
    scene.clients["n-1"].disconnect()
    await asyncio.sleep(30)
    assert (await scene.brokers["n-2"].message_count(SHARD_COORDINATOR)) == (0, 1), "one node reads it"
    answers = [one.answers for one in scene.members]
    await asyncio.sleep(30)
    assert [one.answers - before for one, before in zip(scene.members, answers, strict=True)] == [10] * 5
    scene.clients["n-1"].alive = True
    await asyncio.sleep(30)
    assert (await scene.brokers["n-2"].message_count(SHARD_COORDINATOR)) == (0, 2)
    assert await active(scene) == 1
    assert scene.all_run()


async def test_a_broker_that_was_away_makes_nobody_inactive(scene: Scene) -> None:
    await scene.node("n-1")
    for number in range(5):
        await scene.join(f"w-{number}")
    await settled(scene)
    scene.server.stop()
    await asyncio.sleep(60)
    scene.server.start()
    await settled(scene)
    await asyncio.sleep(60)
    assert await active(scene) == 1
    assert scene.all_run()


async def test_after_a_broker_outage_the_dead_are_found_all_the_same(scene: Scene) -> None:
    await scene.node("n-1")
    one, _ = await scene.join("w-1"), await scene.join("w-2")
    await settled(scene)
    await one.crash()
    scene.server.stop()
    await asyncio.sleep(60)
    scene.server.start()
    await eventually(lambda: scene.held() == {"w-2": list(range(10))}, deadline=60.0, every=0.1)


async def test_a_node_that_starts_late_declares_nobody_inactive(scene: Scene) -> None:
    one = await scene.node("n-1")
    for number in range(3):
        await scene.join(f"w-{number}")
    await settled(scene)
    await one.stop()
    await asyncio.sleep(60)
    await scene.node("n-2")
    await settled(scene)
    await asyncio.sleep(30)
    assert await active(scene) == 1


async def test_nothing_counts_while_the_broker_is_blocked(scene: Scene) -> None:
    await scene.node("n-1")
    member = await scene.join("w-1")
    await settled(scene)
    scene.brokers["n-1"].blocked = "memory"
    await member.crash()
    await asyncio.sleep(60)
    assert "w-1" in (await scene.stored()).state.members
    scene.brokers["n-1"].blocked = None
    await asyncio.sleep(14)
    assert "w-1" in (await scene.stored()).state.members
    await asyncio.sleep(8)
    assert (await scene.stored()).state.members == {}


async def test_a_client_of_the_same_id_does_not_take_the_heartbeats_of_the_member(scene: Scene) -> None:
    """Those of the member are queued for a second; what another one says just after each of them replaces none."""
    node = await scene.node("n-1")
    member = await scene.join("w-1", instance=None)
    await settled(scene)
    reply_to = (await scene.stored()).state.members["w-1"].reply_to
    await member._beats.stop()
    for _ in range(8):
        await asyncio.sleep(5)
        sent = MemberHeartbeat(worker_id="w-1", instance=None, shard_count=10, shards=member.shards)
        body = messages.heartbeat(SERVICE, sent)
        await node.handle([MemberRequest(body, reply_to, None)])
        (refused,) = await node.handle([MemberRequest(body, "zmq:02", None, "n-2")])
        (answer,) = refused.answers
        assert (answer.reply_to, answer.via) == ("zmq:02", "n-2")
        assert messages.read_assignment(answer.body, "w-1").grants == ()
    await asyncio.sleep(2)
    known = (await scene.stored()).state.members["w-1"]
    assert known.reply_to == reply_to
    assert list(member.shards.numbers()) == list(range(10))
    assert await active(scene) == 1


async def registered(scene: Scene, node: ShardCoordinator, worker: str) -> MemberAnswer:
    """What a plain client is answered that registers over a socket of another node, once that is active."""
    asked = MemberRegistration(worker_id=worker, instance=None, shard_count=10)
    request = MemberRequest(messages.register(SERVICE, asked), f"zmq:{worker}", None, "n-2")
    await node.handle([request])
    await eventually(lambda: scene.stored_member(worker), deadline=20, every=0.5)
    (handled,) = await node.handle([request])
    (answer,) = handled.answers
    return answer


async def test_what_another_node_asks_for_is_what_is_stored_now(scene: Scene) -> None:
    node = await scene.node("n-1")
    answer = await registered(scene, node, "w-1")
    assert list(await node.current({"zmq:w-1", "zmq:w-9"})) == [answer]
    await scene.join("w-0")
    await asyncio.sleep(5)
    (pushed,) = await node.current({"zmq:w-1"})
    assert (pushed.reply_to, pushed.via) == ("zmq:w-1", "n-2")
    assert shards_of(messages.read_assignment(pushed.body, "w-1").grants) == ShardRanges.of_numbers(range(5, 10))
    assert list(await node.current({"zmq:w-2"})) == []


async def test_a_node_that_stood_still_since_the_commit_sends_a_plain_client_nothing_old(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not see that another member has these shards meanwhile."""
    node = await scene.node("n-1")
    other = await scene.node("n-2")
    await registered(scene, other, "w-1")
    await node._loop.stop()
    apply = node._changes.apply

    async def slowly(service: str, events: Sequence[Event]) -> list[Effect]:
        effects = await apply(service, events)
        await asyncio.sleep(12)
        return effects

    monkeypatch.setattr(node._changes, "apply", slowly)
    asked = MemberRegistration(worker_id="w-1", instance=None, shard_count=10)
    request = MemberRequest(messages.register(SERVICE, asked), "zmq:w-1", None, "n-2")
    late = asyncio.create_task(node.handle([request]))
    await asyncio.sleep(1)
    joins = MemberRegistration(worker_id="w-0", instance="i-1", shard_count=10, seq=1)
    await other.handle([MemberRequest(messages.register(SERVICE, joins), None, None)])
    (handled,) = await late
    (answer,) = handled.answers
    assert shards_of(messages.read_assignment(answer.body, "w-1").grants) == ShardRanges.of_numbers(range(5, 10))


@pytest.mark.parametrize("instance", [None, "i-1"])
async def test_a_routine_answer_of_a_node_that_stood_still_since_the_commit_is_left_to_the_next_heartbeat(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, instance: str | None
) -> None:
    """A member of the SDK sees by the generation that an answer is old."""
    await scene.node("n-1")
    member = await scene.join("w-1", instance=instance)
    await settled(scene)
    await asyncio.sleep(10)
    await member._beats.stop()
    await asyncio.sleep(3)
    note, before = workers.note, member.answers

    async def slowly(*arguments: Any) -> set[int]:
        noted = await note(*arguments)
        await asyncio.sleep(6)
        return noted

    monkeypatch.setattr(workers, "note", slowly)
    await member.beat()
    await asyncio.sleep(9)
    assert member.answers - before == (0 if instance is None else 1)
    monkeypatch.setattr(workers, "note", note)
    await member.beat()
    await asyncio.sleep(3)
    assert member.answers - before == (1 if instance is None else 2)


async def test_who_waits_for_a_slow_change_to_be_heard_is_not_silent(scene: Scene) -> None:
    """A check that waits with the heartbeats for that change, and comes before them, begins to listen anew."""
    node = await scene.node("n-1")
    alive, dead = await scene.join("w-1"), await scene.join("w-2")
    await settled(scene)
    await asyncio.sleep(10)
    await dead.crash()
    await node._loop.stop()
    since = node._listening.update(node._database.now())
    await alive._beats.stop()
    await asyncio.sleep(2)
    await node._writing.acquire()
    await asyncio.sleep(node._rules.heartbeat_timeout_s)
    check = asyncio.create_task(node._check(SERVICE, since))
    await asyncio.sleep(1)
    await alive.beat()
    await alive._beats.start()
    await asyncio.sleep(4)
    node._writing.release()
    await check
    assert await scene.stored_member("w-1")
    await node._loop.start()
    await eventually(lambda: scene.held() == {"w-1": list(range(10))}, deadline=40.0, every=0.1)
    assert alive.errors == []


async def test_a_heartbeat_that_always_fails_keeps_no_other_from_being_stored(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.node("n-1")
    await scene.join("w-1")
    await asyncio.sleep(1.3)
    other = await scene.join("w-2")
    await settled(scene)
    await asyncio.sleep(10)
    row, note = (await scene.stored()).ids["w-1", "i-1"], workers.note

    async def failing(tx: Transaction, signs: Sequence[SignOfLife], now: datetime) -> set[int]:
        if any(one.id == row for one in signs):
            raise ValueError("planted")
        return await note(tx, signs, now)

    monkeypatch.setattr(workers, "note", failing)
    before = other.answers
    await asyncio.sleep(30)
    assert other.answers - before >= 3


async def test_more_heartbeats_than_one_statement_takes_are_stored_in_the_same_second(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "BATCH", 1)
    await scene.node("n-1")
    made = [await scene.join(f"w-{place}") for place in range(5)]
    await settled(scene)
    await asyncio.sleep(10)
    for member in made:
        await member._beats.stop()
    await asyncio.sleep(3)
    before = [member.answers for member in made]
    for member in made:
        await member.beat()
    expected = [one + 1 for one in before]
    await eventually(lambda: [member.answers for member in made] == expected, deadline=1.9, every=0.01)


async def test_all_services_without_members_are_pruned_and_not_only_some(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "HISTORY_KEPT", timedelta(seconds=60))
    many = services.PRUNED_AT_ONCE * 2 + 1
    async with scene.database.begin() as tx:
        for place in range(many):
            await services.insert_if_absent(tx, f"s-{place}", 1, tx.now())
    await asyncio.sleep(100)
    await scene.node("n-1")
    await asyncio.sleep(5)
    async with scene.database.read() as connection:
        assert await services.versions(connection) == {}
