"""Can clients of S1 share a service by plain messages, and is each generation of S4 seen in the database?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.acceptance.plain_members import PlainMember
from tests.acceptance.system import EVERY_DATABASE, System
from tests.support import eventually

COUNT = 10
SERVICE = "orders"
BRIEF = {
    "ORCHESTRIX_GIT__PROVIDER": "none",
    "ORCHESTRIX_SHARDS__WINDOW": "1",
    "ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT": "9",
    "ORCHESTRIX_SHARDS__CHECK": "1",
}
SILENT_S = 3 * (9 + 1 + 1)
"""Threefold: time-out, check and window."""
THIRDS = [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
QUARTERS = [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]

Start = Callable[..., PlainMember]


@pytest.fixture
def start(system: System) -> Iterator[Start]:
    """Starts a client; ends them all with the test."""
    started: list[PlainMember] = []

    def make(worker_id: str, service: str = SERVICE) -> PlainMember:
        started.append(PlainMember(system.broker_url, service, worker_id, COUNT))
        return started[-1]

    yield make
    for one in started:
        one.close()


async def three(start: Start) -> list[PlainMember]:
    """Three that register within one window, and are assigned what S1's example says."""
    members = [start(f"worker-{number}") for number in (1, 2, 3)]
    for one in reversed(members):
        one.register()
    for one, shards in zip(members, THIRDS, strict=True):
        await one.assigned(shards)
    return members


@EVERY_DATABASE
@pytest.mark.req(
    *(f"S1-{row}" for row in (2, 3, 4, 5, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32)),
    *(f"S1-{row}" for row in (34, 35, 36, 37, 38, 39, 49, 51)),
)
async def test_clients_of_s1_share_ten_shards(system: System, start: Start) -> None:
    """To the letter of S1, which takes the word of its clients: ORCHESTRIX_SHARDS__PLAIN=push."""
    for _ in range(2):
        _, url = system.node(port=None, **BRIEF, ORCHESTRIX_SHARDS__PLAIN="push")
        await system.ready(url)
    members = await three(start)
    other = start("worker-1", service="invoices")
    other.register()
    await other.assigned(list(range(COUNT)))
    await _again(members)
    await _all_beat(*members, other)
    fourth = await _a_heartbeat_of_an_unknown(members, start)
    await _all_beat(*members, other)
    await _one_leaves(members, fourth)
    await _all_beat(*members, other)
    await _another_count(members)
    await _all_beat(*members, other)
    await _one_falls_silent(members, other)


async def _all_beat(*members: PlainMember) -> None:
    """As they do every few seconds, so that none of them is silent in what follows."""
    for one in members:
        one.beat()
        await one.answered()


async def _again(members: list[PlainMember]) -> None:
    """Registered again, and with a heartbeat: the same assignment at once."""
    for one, shards in zip(members, THIRDS, strict=True):
        one.register()
        assert (await one.answered()) == {"type": "assignment", "data": {"assignedShards": shards}}
        one.beat()
        assert (await one.answered()) == {"type": "assignment", "data": {"assignedShards": shards}}


async def _a_heartbeat_of_an_unknown(members: list[PlainMember], start: Start) -> PlainMember:
    """It is registered by that; the others learn of it without having asked."""
    fourth = start("worker-4")
    fourth.beat()
    assert (await fourth.answered())["data"]["assignedShards"] == []
    before = [len(one.answers) for one in members]
    await fourth.assigned(QUARTERS[3])
    for one, shards, count in zip(members, QUARTERS[:3], before, strict=True):
        await one.assigned(shards)
        assert one.asked[count:] == [None], "one assignment, which was pushed"
    return fourth


async def _one_leaves(members: list[PlainMember], fourth: PlainMember) -> None:
    fourth.leave()
    for one, shards in zip(members, THIRDS, strict=True):
        await one.assigned(shards)


async def _another_count(members: list[PlainMember]) -> None:
    """The last one that is reported counts for the whole service."""
    members[1].count = 4
    members[1].beat()
    for one, shards in zip(members, [[0, 1], [2], [3]], strict=True):
        await one.assigned(shards)
    members[1].count = COUNT
    members[2].register()
    for one, shards in zip(members, THIRDS, strict=True):
        await one.assigned(shards)


async def _one_falls_silent(members: list[PlainMember], other: PlainMember) -> None:
    """Its shards go to the others, and when it speaks again it is a member again. Another service sees nothing."""
    *living, silent = members
    heard, count = len(silent.answers), len(other.answers)

    async def are_redistributed() -> bool:
        await _all_beat(*living, other)
        return [one.shards for one in living] == [list(range(5)), list(range(5, 10))]

    await eventually(are_redistributed, deadline=SILENT_S, every=0.5, message="the shards of one that is silent")
    assert len(silent.answers) == heard, "it is no member"
    assert other.asked[count:]
    assert None not in other.asked[count:]
    assert other.shards == list(range(COUNT))
    silent.beat()
    for one, shards in zip(members, THIRDS, strict=True):
        await one.assigned(shards)


@pytest.mark.req("S1-15", "S1-17")
async def test_what_is_no_message_of_s1_is_refused_with_a_sentence(system: System, start: Start) -> None:
    _, url = system.node(port=None, **BRIEF)
    await system.ready(url)
    member = start("worker-1")
    for body, words in (
        (b"{}", "type: must be one of register, heartbeat, leave"),
        (b'{"type":"register","data":{"serviceName":"orders","workerId":"w"}}', "maxShardCount"),
        (b'{"type":"register","data":{"serviceName":"orders","workerId":"w","maxShardCount":100001}}', "100000"),
        (b"\xff", ""),
        (b"{" + b" " * 70_000 + b"}", "at most 65536"),
    ):
        member.publish(body)
        answer = await member.answered()
        assert answer["data"]["assignedShards"] == []
        assert words in answer["data"]["error"]
    member.register()
    await member.assigned(list(range(COUNT)))


# S4: the generations, as the database shows them.


class Generations:
    """What the rows say."""

    def __init__(self, system: System) -> None:
        self._engine = create_async_engine(system.database_url, poolclass=NullPool)

    async def rows(self) -> dict[int, dict[str, Any]]:
        """The generations of the service, by number."""
        query = "SELECT number, state, cause, leader_id, leader_until FROM generations WHERE service = :service"
        async with self._engine.connect() as connection:
            found = await connection.execute(text(query), {"service": SERVICE})
            rows: dict[int, dict[str, Any]] = {row.number: dict(row._mapping) for row in found}
            return rows

    async def until(self, *states: str, within: float = 15.0) -> dict[int, dict[str, Any]]:
        """Waits until the generations from the first on are in these states; their rows."""

        async def are() -> dict[int, dict[str, Any]] | None:
            rows = await self.rows()
            found = [str(rows[number]["state"]) for number in sorted(rows)]
            assert found == list(states), f"generations are {found}"
            return rows

        found: dict[int, dict[str, Any]] | None = await eventually(are, deadline=within, every=0.05)
        assert found is not None
        return found

    async def close(self) -> None:
        await self._engine.dispose()


@pytest.fixture
async def generations(system: System) -> AsyncIterator[Generations]:
    """They are those of the test's own service."""
    made = Generations(system)
    yield made
    await made.close()


@EVERY_DATABASE
@pytest.mark.req(
    *(f"S4-{row}" for row in (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27)),
    *(f"S4-{row}" for row in (36, 37, 41, 42, 44)),
)
async def test_generations_go_from_pending_to_active_to_superseded(
    system: System, start: Start, generations: Generations
) -> None:
    nodes = {name: system.node(port=None, **BRIEF, ORCHESTRIX_NODE_ID=name) for name in ("ada", "bob")}
    for _, url in nodes.values():
        await system.ready(url)
    members = [start(f"worker-{number}") for number in (1, 2, 3)]
    for one in members:
        one.register()
    first = (await generations.until("pending"))[1]
    assert first["cause"] == "joined"
    assert [one.answers for one in members] == [[], [], []], "they wait until it is active"
    first = (await generations.until("active"))[1]
    assert first["leader_until"] is None
    assert first["leader_id"].rpartition("-")[0] in nodes
    for one, shards in zip(members, THIRDS, strict=True):
        await one.assigned(shards)
    await _leader_dies(members, nodes, generations)


async def _leader_dies(members: list[PlainMember], nodes: dict[str, tuple[Any, str]], generations: Generations) -> None:
    """The node that leads a pending generation is killed: another one supersedes that, and activates the next."""
    first, leaving, last = members  # whose shards are in the middle: nobody has to let go of one
    leaving.leave()

    async def led() -> str | None:
        row = (await generations.rows()).get(2)
        assert row is None or row["state"] == "pending", "it was active before its leader could be killed"
        return None if row is None else row["leader_id"]

    leader = str(await eventually(led, deadline=10, every=0.01, message="a node leads the second generation"))
    nodes[leader.rpartition("-")[0]][0].kill9()

    async def is_over() -> bool:
        first.beat()
        last.beat()
        rows = await generations.rows()
        return [str(rows[number]["state"]) for number in sorted(rows)] == ["superseded", "superseded", "active"]

    await eventually(is_over, deadline=60, every=1.0, message="the third generation is active")
    third = (await generations.rows())[3]
    assert (third["cause"], third["leader_until"]) == ("abandoned", None)
    assert third["leader_id"] != leader
    for one, shards in ((first, [0, 1, 2, 3, 4]), (last, [5, 6, 7, 8, 9])):
        await one.assigned(shards)
