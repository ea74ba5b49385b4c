"""Do coordinators of two processes agree over each database, when members talk to both?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from orchestrix.broker.port import Broker, LinkState
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.grants import Grants, shards_of
from orchestrix.domain.shards.state import Assignment, MemberHeartbeat, MemberLeave, MemberRegistration, ShardRules
from orchestrix.persistence.engine import Database
from orchestrix.persistence.shards import generations, service_store
from orchestrix.shards.changes import ServiceChanges
from orchestrix.shards.coordinator import ShardCoordinator
from orchestrix.shards.rabbitmq import MemberAnswer, MemberRequest, RequestHandler
from tests.support import eventually

SERVICE = "orders"
COUNT = 12
RULES = ShardRules(window_s=0.3, heartbeat_timeout_s=4.0)


class Link:
    """A broker that is always there."""

    state, blocked, generation = LinkState.UP, None, 1


@dataclass
class Mailbox:
    """What each member was sent, by its queue."""

    bodies: dict[str, list[bytes]] = field(default_factory=dict)

    async def send(self, answers: Sequence[MemberAnswer]) -> None:
        for one in answers:
            self.bodies.setdefault(one.reply_to, []).append(one.body)


@dataclass
class DirectTransport:
    """A transport without a broker."""

    handler: RequestHandler
    mailbox: Mailbox

    async def start(self) -> None:
        """Nothing comes by itself."""

    async def stop(self) -> None:
        """Nothing comes by itself."""

    async def send(self, answers: Sequence[MemberAnswer]) -> None:
        await self.mailbox.send(answers)


class World:
    """Two coordinators, and members that send each message to the next of them."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self.mailbox = Mailbox()
        self.nodes = [
            ShardCoordinator(
                database,
                cast(Broker, Link()),
                lambda handler: DirectTransport(handler, self.mailbox),
                node_id=f"n-{place}",
                rules=RULES,
                check_s=0.5,
            )
            for place, database in enumerate(databases)
        ]
        self.seq = 0
        self.members: list[str] = []

    async def say(self, *bodies: tuple[str, bytes]) -> None:
        """Each by its sender, together."""
        self.seq += 1
        node = self.nodes[self.seq % len(self.nodes)]
        requests = [MemberRequest(body, worker, None) for worker, body in bodies]
        for handled in await node.handle(requests):
            assert handled.unreadable is None
            await self.mailbox.send(handled.answers)

    async def register(self, *workers: str) -> None:
        self.members += workers
        await self.say(*((one, self._registration(one)) for one in workers))

    def _registration(self, worker: str) -> bytes:
        asked = MemberRegistration(worker_id=worker, instance="i-1", shard_count=COUNT, seq=self.seq + 1)
        return messages.register(SERVICE, asked)

    async def leave(self, worker: str) -> None:
        self.members.remove(worker)
        await self.say((worker, messages.leave(SERVICE, MemberLeave(worker, "i-1"))))

    async def beat(self) -> None:
        await self.say(*((one, self._heartbeat(one)) for one in self.members))

    def _heartbeat(self, worker: str) -> bytes:
        known = self.last(worker)
        sent = MemberHeartbeat(
            worker_id=worker,
            instance="i-1",
            shard_count=COUNT,
            shards=shards_of(known.grants) if known else shards_of(()),
            seq=self.seq + 1,
            generation=known.generation if known else 0,
        )
        return messages.heartbeat(SERVICE, sent, known.grants if known else ())

    def last(self, worker: str) -> Assignment | None:
        bodies = self.mailbox.bodies.get(worker)
        return messages.read_assignment(bodies[-1], worker) if bodies else None

    def grants(self, worker: str) -> Grants:
        known = self.last(worker)
        return known.grants if known is not None and worker in self.members else ()

    def held(self) -> dict[str, int]:
        """How many shards each member has; none twice."""
        numbers = [one for worker in self.members for one in shards_of(self.grants(worker)).numbers()]
        assert len(numbers) == len(set(numbers)), "a shard has two members"
        return {worker: shards_of(self.grants(worker)).size for worker in self.members}

    async def shared(self, **shares: int) -> None:
        """Beats until the members have so many each."""

        async def are_shared() -> bool:
            await self.beat()
            return self.held() == {name.replace("_", "-"): size for name, size in shares.items()}

        await eventually(are_shared, deadline=20.0, every=0.2)


@pytest.fixture
async def world(database: Database, peer: Database) -> AsyncIterator[World]:
    made = World([database, peer])
    for node in made.nodes:
        await node.start()
    yield made
    for node in made.nodes:
        await node.stop()


@pytest.mark.req("S1-4", "S1-5", "S1-36", "S4-18", "S4-19", "S4-41")
async def test_members_join_leave_and_fall_silent(world: World, database: Database) -> None:
    await world.register("w-1", "w-2")
    await world.shared(w_1=6, w_2=6)
    await world.register("w-3")
    await world.shared(w_1=4, w_2=4, w_3=4)
    await world.leave("w-2")
    await world.shared(w_1=6, w_3=6)
    world.members.remove("w-1")
    await world.shared(w_3=12)
    async with database.read() as connection:
        history = await generations.history(connection, SERVICE)
    assert [one.cause for one in reversed(history)] == ["joined", "joined", "left", "inactive"]
    assert [one.state for one in history] == ["active", "superseded", "superseded", "superseded"]


async def test_two_nodes_that_are_told_the_same_at_once_make_one_generation(world: World, database: Database) -> None:
    await asyncio.gather(*(world.register(f"w-{number}") for number in range(6)))
    await world.shared(**{f"w_{number}": 2 for number in range(6)})
    async with database.read() as connection:
        known = await service_store.read(connection, SERVICE)
    assert known is not None
    assert known.state.number == 1
    assert known.state.active is not None
    assert known.state.active.leader_id in ("n-0", "n-1")


async def test_a_heartbeat_is_stored_before_it_is_answered(world: World, database: Database) -> None:
    await world.register("w-1")
    await world.shared(w_1=12)
    for _ in range(10):
        await world.beat()
        await asyncio.sleep(0.2)
        known = world.last("w-1")
        async with database.read() as connection:
            stored = await service_store.read(connection, SERVICE)
        assert known is not None
        assert stored is not None
        assert known.seq <= stored.state.members["w-1"].seq
    await eventually(lambda: _is_answered(world), deadline=6.0)


def _is_answered(world: World) -> bool:
    known = world.last("w-1")
    return known is not None and known.seq == world.seq


async def test_nodes_that_change_a_service_at_once_wait_for_each_other(database: Database, peer: Database) -> None:
    """None of their transactions is in the way of another one's, so that none has to be tried again."""
    both = [ServiceChanges(one, RULES) for one in (database, peer)]

    async def join(worker: str) -> MemberRegistration:
        asked = MemberRegistration(worker_id=worker, instance="i-1", shard_count=COUNT, seq=1, reply_to=worker)
        await both[int(worker) % 2].apply(SERVICE, [asked])
        return asked

    await join("0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "run", Database._run_once)
        await asyncio.gather(*(join(str(number)) for number in range(1, 9)))
    async with database.read() as connection:
        found = await service_store.read(connection, SERVICE)
    assert found is not None
    assert len(found.state.members) == 9
