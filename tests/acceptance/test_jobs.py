"""Does every word of a hundred running jobs count once, in order, while nodes, links and servers fail?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from tests.acceptance.job_world import FAST, REAL, SCALED, Act, JobWorld, refused
from tests.acceptance.system import System
from tests.fault.world import Member
from tests.servers.base import Server
from tests.servers.maria import MariaServer
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.servers.sql import change_databases
from tests.support import holds

DURING = 2
"""Jobs that are put down in the middle of each fault."""
DATABASE = "jobs"

S = TypeVar("S", PostgresServer, MariaServer)
Worlds = Callable[[str, RabbitServer], JobWorld]


@pytest.fixture
def worlds(system_on: Callable[[str, str], System], scale: Callable[[int, int], int]) -> Iterator[Worlds]:
    """A world on a database and a broker of its own; no process yet."""
    made: list[JobWorld] = []

    def make(database_url: str, broker: RabbitServer) -> JobWorld:
        system = system_on(database_url, broker.url())
        made.append(JobWorld(system, (SCALED, REAL)[scale(0, 1)], places=scale(40, 100)))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def count(scale: Callable[[int, int], int]) -> int:
    """How many jobs run from the beginning."""
    return scale(20, 100)


@pytest.mark.req("DC-7", "S0-2", "S0-10", "S0-24", "S0-25", "S0-26", "S0-46", "S0-72", "S0-74", "S0-75", "S0-76")
async def test_every_word_counts_once_on_postgresql(
    worlds: Worlds,
    private_rabbitmq: Callable[[], RabbitServer],
    private_postgres: Callable[[], PostgresServer],
    count: int,
) -> None:
    broker, database = await _started(private_rabbitmq, private_postgres)
    acts: list[Act] = [
        partial(_killed, leading=False),
        partial(_killed, leading=True),
        partial(_terminated, leading=False),
        partial(_terminated, leading=True),
        _frozen_leader,
        _frozen_follower,
        partial(_database_link_dead, leading=True),
        partial(_broker_link_cut, leading=False),
        partial(_server_away, broker),
        partial(_server_away, database),
        _all_killed,
    ]
    await _story(worlds(database.url(DATABASE), broker), count, acts)


@pytest.mark.req("DC-7")
async def test_every_word_counts_once_on_mariadb(
    worlds: Worlds,
    private_rabbitmq: Callable[[], RabbitServer],
    private_mariadb: Callable[[], MariaServer],
    count: int,
    scale: Callable[[int, int], int],
) -> None:
    """The faults in which the database has a part: what a frozen or unreachable node holds there, and what its end
    leaves. All others come to the same statements: those are tried on PostgreSQL, and in a soak here too.
    """
    broker, database = await _started(private_rabbitmq, private_mariadb)
    others: list[Act] = [
        partial(_terminated, leading=False),
        partial(_server_away, broker),
        _all_killed,
    ]
    acts: list[Act] = [
        partial(_killed, leading=True),
        _frozen_leader,
        partial(_broker_link_cut, leading=True),
        partial(_database_link_dead, leading=False),
        partial(_server_away, database),
        *others[: scale(0, len(others))],
    ]
    await _story(worlds(database.url(DATABASE), broker), count, acts)


@pytest.mark.req("DC-7")
async def test_no_job_is_silent_because_the_broker_takes_no_messages(
    worlds: Worlds,
    private_rabbitmq: Callable[[], RabbitServer],
    private_postgres: Callable[[], PostgresServer],
    count: int,
) -> None:
    broker, database = await _started(private_rabbitmq, private_postgres)
    world = worlds(database.url(DATABASE), broker)
    world.tempo = replace(world.tempo, env={**world.tempo.env, "ORCHESTRIX_JOBS__SILENT": f"{world.tempo.dead:g}"})
    await _story(world, count, [partial(_memory_alarm, broker)])


async def _started(broker: Callable[[], RabbitServer], database: Callable[[], S]) -> tuple[RabbitServer, S]:
    started = await asyncio.gather(asyncio.to_thread(broker), asyncio.to_thread(database))
    await asyncio.to_thread(change_databases, started[1].url(), [DATABASE], [])
    return started


async def _story(world: JobWorld, count: int, acts: Sequence[Act]) -> None:
    await world.up()
    await world.submit(count)
    await world.owned()
    await world.talking()
    for act in acts:
        began = time.monotonic()
        told = await act(world)
        await world.owned()
        await world.talking()
        print(f"{time.monotonic() - began:5.1f} s  {told}")
    ledger = await world.ended()
    ledger.check(world.submitted)


# Each of them ends with all nodes there, and no link or server disturbed.


async def _chosen(world: JobWorld, leading: bool) -> str:
    return await (world.leader() if leading else world.follower())


async def _killed(world: JobWorld, *, leading: bool) -> str:
    """kill -9: its queue tells, and the leader, or the next one, finds new owners."""
    dead = await _chosen(world, leading)
    world.node(dead).process.kill9()
    took = await world.owned(dead)
    await world.submit(DURING, at=world.others(dead))
    world.node(dead).restart()
    await world.ready()
    return f"{'leader' if leading else 'follower'} killed, owned again after {took:.1f} s"


async def _terminated(world: JobWorld, *, leading: bool) -> str:
    """SIGTERM: when it has ended, others have its jobs, and another one leads."""
    left = await _chosen(world, leading)
    node = world.node(left)
    node.process.terminate()
    assert await node.process.exited(deadline=2 * FAST * world.tempo.slack) == 0
    took = await world.owned(left, within=FAST)
    await world.submit(DURING, at=world.others(left))
    assert await world.leader() != left
    node.restart()
    await world.ready()
    return f"{'leader' if leading else 'follower'} told to end, owned again after {took:.1f} s"


async def _frozen_leader(world: JobWorld) -> str:
    """SIGSTOP: the lease ends. Awake again, it writes nothing in its old term, and joins as another node."""
    frozen = await world.leader()
    process = world.node(frozen).process
    # So that it is in the middle of sending jobs out.
    coming = asyncio.create_task(world.submit(DURING, at=world.others(frozen)))
    process.pause()
    try:
        took = await world.led(but=frozen)
        await world.buried(frozen)
    finally:
        process.resume()
    await refused(process, frozen)
    await coming
    await world.joined_anew(frozen)
    return f"leader frozen, led again after {took:.1f} s"


async def _frozen_follower(world: JobWorld) -> str:
    """SIGSTOP: it is found dead, and others own its jobs. Awake again, it writes nothing of them under its old id."""
    frozen = await world.follower()
    process = world.node(frozen).process
    process.pause()
    try:
        await world.submit(DURING, at=world.others(frozen))
        took = await world.buried(frozen)
    finally:
        process.resume()
    await world.joined_anew(frozen)
    return f"follower frozen, dead after {took:.1f} s"


async def _database_link_dead(world: JobWorld, *, leading: bool) -> str:
    """Nothing comes through, and what was held back does later, when others have its jobs."""
    cut = await _chosen(world, leading)
    node = world.node(cut)
    node.database.black_hole()
    try:
        await world.submit(DURING, at=world.others(cut))
        if leading:
            await world.led(but=cut)
        took = await world.owned(cut)
    finally:
        node.heal()
    await world.joined_anew(cut)
    return f"database link of {'leader' if leading else 'follower'} dead, owned again after {took:.1f} s"


async def _broker_link_cut(world: JobWorld, *, leading: bool) -> str:
    """It lives by the database, and reads its jobs again when it can; another one leads."""
    cut = await _chosen(world, leading)
    _cut(world.node(cut))
    try:
        if leading:
            await world.led(but=cut)
        await world.submit(DURING, at=world.others(cut))
        await holds(lambda: world.node(cut).alive, during=world.tempo.away)
    finally:
        world.node(cut).heal()
    await world.ready()
    return f"broker connection of {'leader' if leading else 'follower'} cut"


def _cut(node: Member) -> None:
    node.broker.refuse()
    node.broker.reset()


async def _server_away(server: Server, world: JobWorld) -> str:
    """It ends, stays away for longer than a lease runs, and comes back; the jobs run on."""
    await asyncio.to_thread(server.stop)
    await holds(world.all_live, during=world.tempo.away, message="nobody ends of it")
    await asyncio.to_thread(server.start)
    await world.submit(DURING)
    await world.ready()
    return f"{server.kind} away"


async def _memory_alarm(broker: RabbitServer, world: JobWorld) -> str:
    """No worker can beat for longer than it may be silent; each job runs on, in the same attempt."""
    try:
        await asyncio.to_thread(broker.alarm)
        await holds(world.all_live, during=3 * world.tempo.away, message="nobody ends of it")
    finally:
        await asyncio.to_thread(broker.all_clear)
    await world.submit(DURING)
    await world.ready()
    return "memory alarm"


async def _all_killed(world: JobWorld) -> str:
    """Nobody listens for a while; then all begin anew, and what the workers said meanwhile is there."""
    dead = [id for id, state in (await world.look()).nodes.items() if state == "ALIVE"]
    for node in world.nodes.values():
        node.process.kill9()
    await holds(world.workers_live, during=world.tempo.away / 3, message="the workers go on")
    for node in world.nodes.values():
        node.restart()
    await world.ready()
    took = await world.owned(*dead, within=world.tempo.owned + world.tempo.led)
    await world.submit(DURING)
    return f"all nodes killed, owned again after {took:.1f} s"
