"""Does `doctor` find what keeps shards from members, and say what helps?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from orchestrix.broker.port import Broker
from orchestrix.broker.topology import SHARD_COORDINATOR
from orchestrix.cli.doctor.result import WARN
from orchestrix.cli.doctor.shards import ShardFacts, facts, shards
from orchestrix.domain.shards.diagnosis import UnownedShards, UnreleasedShards
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import MemberLeave, ServiceCheck
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database
from orchestrix.persistence.shards import generations
from orchestrix.persistence.shards.generations import GenerationRecord
from orchestrix.persistence.shards.overview import ServiceOverview
from tests.conformance.store.test_shards import activated, registration, transact
from tests.servers import templates

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMEOUT_S = 15.0
SERVE = "start a node with the role coordinator: orchestrix serve"


def ago(seconds: float) -> datetime:
    return NOON - timedelta(seconds=seconds)


def generation(number: int = 1, state: str = "active", cause: str = "joined", began: float = 60.0) -> GenerationRecord:
    return GenerationRecord(
        number, state, cause, "w-1", "n-1", ago(began), ago(began - 2), None, 10, 1, 0, ago(began - 2)
    )


def service(name: str = "orders", members: int = 1, **more: Any) -> ServiceOverview:
    values = {"active": generation(), "pending": None, "unowned": None, **more}
    return ServiceOverview(name=name, shard_count=10, members=members, away=0, waiting=0, **values)


def free(count: int, seconds: float) -> UnownedShards:
    return UnownedShards(ShardRanges.up_to(count), ago(seconds))


@dataclass
class Queue:
    """A broker that has, or has not, the queue of members' messages."""

    count: tuple[int, int] | None = (0, 1)

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        assert queue == SHARD_COORDINATOR
        return self.count


async def told(
    *services: ServiceOverview, queue: Queue | None = None, timeout_s: float = TIMEOUT_S, **more: Any
) -> list[tuple[str, str | None]]:
    known = ShardFacts(NOON, services, **more)
    found = await shards(known, cast(Broker, queue or Queue()), timeout_s)
    assert {(one.status, one.what) for one in found} <= {(WARN, "shards")}
    return [(one.detail, one.fix) for one in found]


async def test_without_services_and_where_all_is_well_nothing_is_said() -> None:
    assert await told() == []
    assert await told(queue=Queue(None)) == []
    assert await told(queue=Queue((0, 0))) == []
    assert await told(service(), heard_at=ago(5), windows=frozenset((2.0,))) == []


async def test_shards_without_a_member_count_from_twice_the_time_out_on() -> None:
    assert await told(service(unowned=free(4, 29.9))) == []
    assert await told(service("a b", unowned=free(4, 30.0))) == [
        ("service a b: 4 shards without a member since 2026-01-01T11:59:30Z", "orchestrix shards show 'a b'")
    ]


async def test_a_service_without_members_is_told_of_where_they_fell_silent() -> None:
    """One whose members have left is at its end, and so is one of days ago."""
    for cause, seconds, said in (("left", 60.0, False), ("inactive", 60.0, True), ("inactive", 90_000.0, False)):
        one = service(members=0, active=generation(2, cause=cause), unowned=free(10, seconds))
        assert bool(await told(one)) is said, (cause, seconds)
    ((detail, fix),) = await told(service(members=0, active=generation(cause="inactive"), unowned=free(10, 60.0)))
    assert (
        detail == "service orders: its last members fell silent, 10 shards without a member since 2026-01-01T11:59:00Z"
    )
    assert fix == "start its members, if it is still needed"


async def test_members_that_do_not_let_go() -> None:
    def still(seconds: float, plain: bool) -> ServiceOverview:
        return service(unreleased=[UnreleasedShards("w-1", plain, ShardRanges.up_to(3), ago(seconds), seconds >= 30)])

    assert await told(still(29.9, False)) == []
    ((detail, fix),) = await told(still(30.0, False))
    assert detail.startswith("service orders: w-1 has not let go of 3 shards since 2026-01-01T11:59:30Z: ")
    assert fix == "orchestrix shards show orders"
    assert await told(still(29.9, True)) == []
    assert await told(still(40.0, False), timeout_s=30.0) == []
    assert await told(still(20.0, False), timeout_s=5.0) == []
    ((detail, _),) = await told(still(40.0, True), timeout_s=30.0)
    assert "w-1 does not follow assignments" in detail


async def test_services_that_are_nearly_full_and_nearly_too_many_services() -> None:
    assert await told(service(members=899)) == []
    assert await told(service(members=900)) == [
        (
            "service orders: 900 members, and more than 1,000 are refused",
            "run fewer members, or divide the work among several services",
        )
    ]
    many = [service(f"s-{number}") for number in range(899)]
    assert await told(*many, service("empty", members=0)) == []
    assert await told(*many, service()) == [
        ("900 services have members, and more than 1,000 are refused", "run fewer services")
    ]


async def test_nobody_answers_members() -> None:
    assert await told(queue=Queue((3, 0))) == [
        (f"no node reads {SHARD_COORDINATOR} (3 messages waiting): members get no answer", SERVE)
    ]
    assert len(await told(service(), queue=Queue((0, 0)))) == 1
    assert await told(service(), heard_at=ago(29)) == []
    assert await told(service(), heard_at=ago(31)) == [
        ("no sign of life of any member is stored since 2026-01-01T11:59:29Z: no node answers them", SERVE)
    ]


async def test_generations_that_no_node_activates() -> None:
    assert await told(service(pending=generation(2, "pending", began=11.9))) == []
    late = [service(name, pending=generation(2, "pending", began=began)) for name, began in (("a", 20.0), ("b", 40.0))]
    assert await told(*late) == [
        ("no node activates the generation of b and of 1 more, pending since 2026-01-01T11:59:20Z", SERVE)
    ]


async def test_nodes_with_different_settings() -> None:
    ((detail, fix),) = await told(service(), windows=frozenset((5.0, 2.0)))
    assert detail == "generations since the last node started had windows of 2 s and 5 s: nodes have different settings"
    assert fix is not None
    assert "ORCHESTRIX_SHARDS__" in fix


async def test_of_many_findings_of_a_kind_the_last_are_counted() -> None:
    found = await told(*(service(f"s-{number:02}", unowned=free(1, 60.0)) for number in range(12)))
    assert len(found) == 11
    assert found[-1] == ("and 2 more like the last", "orchestrix shards show")


# What the database says.


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    templates.upgraded(sqlite_url)
    made = Database(sqlite_url)
    yield made
    await made.close()


async def test_the_facts_are_those_of_all_services(database: Database) -> None:
    known = await facts(database)
    assert (known.services, known.members, known.heard_at, known.windows) == ([], 0, None, frozenset())
    await activated(database, "w-1", "w-2")
    for number in range(205):
        await transact(database, [registration("w-1")], name=f"s-{number:03}")
    await transact(database, [MemberLeave("w-2", "i-1")], after_s=-60.0)
    known = await facts(database)
    assert [one.name for one in known.services] == ["orders", *(f"s-{number:03}" for number in range(205))]
    assert known.members == 206
    assert known.heard_at is not None
    assert known.services[0].unowned is not None
    found = await shards(known, cast(Broker, Queue()), TIMEOUT_S)
    assert [one.detail.partition(" since")[0] for one in found] == [
        "no node activates the generation of orders, pending",
        "service orders: 5 shards without a member",
    ]


async def test_windows_are_those_since_the_last_node_started(database: Database) -> None:
    await transact(database, [registration("w-1")], name="before")
    async with database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", database.now())
    await transact(database, [ServiceCheck("node-1", database.now())], after_s=3.0, name="before")
    assert (await facts(database)).windows == frozenset(), "no node is there"
    async with database.begin() as tx:
        await nodes.join(tx, "n-1", "n", ["coordinator"])
    assert (await facts(database)).windows == frozenset()
    await transact(database, [registration("w-1")], after_s=1.0, name="after")
    assert (await facts(database)).windows == {2.0}
