"""Does no shard ever have two holders, and each one again soon, whatever happens to members, nodes and servers?

Twenty members of a service in four processes share 1,000 shards, by the rule of fewest moves; three nodes coordinate
them. What each process has logged of its shards is judged after each fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.system import System
from tests.fault.proxy import Way
from tests.fault.shard_world import COUNT, EACH, REAL, SCALED, SERVICE, FileWorld, ShardWorld, Times
from tests.fault.world import World
from tests.processes import Processes
from tests.servers.base import Server
from tests.servers.maria import MariaServer
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.servers.run import Run
from tests.shard_fleet.fleet import Fleet
from tests.shard_fleet.intervals import machine_time
from tests.support import eventually, holds

Act = Callable[[ShardWorld], Awaitable[None]]
Start = Callable[[World], Awaitable[ShardWorld]]


@pytest.fixture
def times(scale: Callable[[int, int], int]) -> Times:
    """The default times in a soak."""
    return (SCALED, REAL)[scale(0, 1)]


@pytest.fixture
def file_world(
    processes: Processes, tmp_path: Path, sqlite_url: str, rabbitmq: RabbitServer, vhost: str
) -> Iterator[FileWorld]:
    """A world on SQLite."""
    made = FileWorld(System(processes, tmp_path, sqlite_url, rabbitmq.url(vhost)))
    made.system.upgrade()
    yield made
    made.close()


@pytest.fixture
def short(scale: Callable[[int, int], int]) -> bool:
    """Whether each fault comes once, and not on each database."""
    return scale(1, 0) == 1


@pytest.fixture
def fleet(server_run: Run, tmp_path: Path, times: Times) -> Fleet:
    """Ended by `start`, which knows its links; here so that its logs are shown if the test failed."""
    return Fleet(server_run, tmp_path, times.timeout)


@pytest.fixture
async def start(fleet: Fleet, times: Times) -> AsyncIterator[Start]:
    """Starts nodes and members in a world."""
    made: list[ShardWorld] = []

    async def up(world: World) -> ShardWorld:
        made.append(ShardWorld(world, fleet, times))
        await made[-1].up()
        return made[-1]

    yield up
    fleet.close()
    for one in made:
        one.close()


async def _story(shards: ShardWorld, acts: Sequence[Act]) -> None:
    for act in acts:
        await act(shards)
        await shards.settle(_name(act))


def _name(act: Act) -> str:
    return act.func.__name__ if isinstance(act, partial) else getattr(act, "__name__", "")


async def test_on_postgresql(
    start: Start, world: World, rabbitmq: RabbitServer, postgres: PostgresServer, short: bool
) -> None:
    """First what lasts no longer than a lease, but for those to whom it happens. Each fault comes on one database at
    least; in a soak on each.
    """
    shards = await start(world)
    acts = [_one_joins_and_leaves, _links_are_cut, _nodes_are_killed, _members_die_and_stand_still, _count_changes]
    await _story(shards, acts)
    assert shards.of_other_service() == [], "the members of another service were interrupted"
    if not short:
        restarts = [partial(_server_restarts, one) for one in (postgres, rabbitmq)]
        await _story(shards, [_messages_are_late, _a_node_stands_still, *restarts, _all_nodes_are_killed])


async def test_on_mariadb(
    start: Start, maria_world: World, mariadb: MariaServer, rabbitmq: RabbitServer, short: bool
) -> None:
    shards = await start(maria_world)
    await _story(shards, [_a_node_stands_still, partial(_server_restarts, mariadb), _all_nodes_are_killed])
    if not short:
        acts = [_one_joins_and_leaves, _links_are_cut, _nodes_are_killed, _members_die_and_stand_still, _count_changes]
        await _story(shards, [*acts, _messages_are_late, partial(_server_restarts, rabbitmq)])


async def test_on_sqlite(start: Start, file_world: FileWorld, rabbitmq: RabbitServer, short: bool) -> None:
    """A node that stands still can block its file, and so that is left out."""
    shards = await start(file_world)
    await _story(shards, [_messages_are_late, partial(_server_restarts, rabbitmq)])
    if not short:
        acts = [_one_joins_and_leaves, _links_are_cut, _nodes_are_killed, _members_die_and_stand_still, _count_changes]
        await _story(shards, [*acts, _all_nodes_are_killed])


# Each of them ends with twenty members that can work, and no link or server disturbed.


async def _one_joins_and_leaves(shards: ShardWorld) -> None:
    """It is given its share, by the others; then each of these keeps what it has."""
    since = machine_time()
    await shards.fleet.join(shards.fleet.processes[0], SERVICE, COUNT, "guest")
    await shards.settle("one joins")
    held, ended = shards.fleet.held(SERVICE), shards.ended(since)
    assert {one.shard[1] for one in ended} == held["guest"], "no shard moves that need not"
    assert len(ended) == len(held["guest"]) == COUNT // len(held)
    since = machine_time()
    await shards.fleet.leave("guest")
    await shards.settle("one leaves")
    assert shards.ended(since, "guest") == [], "the others keep what they have"


async def _links_are_cut(shards: ShardWorld) -> None:
    """All members connect again, then all nodes, to the broker and to the database."""
    since, nodes = machine_time(), shards.world.nodes
    for links in (shards.links, [one for node in nodes for one in (node.broker, node.database)]):
        for link in links:
            link.reset()
        await shards.passes(shards.times.lease)
    assert shards.ended(since) == [], "a cut that is shorter than the lease interrupts nobody"


async def _nodes_are_killed(shards: ShardWorld) -> None:
    """The one that leads the cluster, and another one, so that one is left."""
    since = machine_time()
    leader = await shards.leading()
    leader.process.kill9()
    await shards.passes(shards.times.lease / 2)
    second = next(node for node in shards.world.nodes if node.alive)
    second.process.kill9()
    await shards.passes(shards.times.lease)
    await shards.restart(leader, second)
    assert shards.ended(since) == [], "one node serves all members"


async def _members_die_and_stand_still(shards: ShardWorld) -> None:
    """A process with five of them is killed, and another one stopped; when that wakes its shards are others'."""
    since, dead, asleep = machine_time(), shards.fleet.processes[1], shards.fleet.processes[2]
    sleeping = tuple(asleep.members)
    assert len(sleeping) == EACH
    dead.kill9()
    asleep.pause()
    try:
        await shards.settle("the others have the shards of those that died or stand still")
        assert shards.ended(since, *sleeping) == [], "the others keep what they have"
    finally:
        asleep.resume()
    await shards.replace(1)


async def _count_changes(shards: ShardWorld) -> None:
    """Whoever joins last says how many there are."""
    process = shards.fleet.processes[0]
    for count in (10, 5000, COUNT):
        await shards.fleet.join(process, SERVICE, count, f"count-{count}")
        await shards.settle(f"{count} shards", count)
    for count in (10, 5000, COUNT):
        await shards.fleet.leave(f"count-{count}")


async def _messages_are_late(shards: ShardWorld) -> None:
    """All that members and nodes say is late for a time-out, some of it by more than a second while what others say is
    not. What one node says waits on its way for most of a time-out, and arrives after newer answers of the others; so
    do the heartbeats of five members. One joins meanwhile, and five die.
    """
    times, node = shards.times, shards.world.nodes[0]
    late = times.lease / 8
    links = (*shards.links, *(one.broker for one in shards.world.nodes))
    for link in links:
        link.slow(late, late)
    await shards.fleet.join(shards.fleet.processes[3], SERVICE, COUNT, "guest")
    await shards.passes(times.lease / 2)
    shards.fleet.processes[1].kill9()
    for link, way in ((node.broker, Way.UP), (shards.links[2], Way.UP), (shards.links[0], Way.DOWN)):
        link.black_hole(way)
    await shards.passes(times.timeout * 0.8)
    for link in links:
        link.heal()
    await shards.settle("late messages, and members that die meanwhile")
    await shards.replace(1)
    await shards.fleet.leave("guest")


async def _a_node_stands_still(shards: ShardWorld) -> None:
    """With messages of members in its hands, of which it tells the database and the members when it wakes."""
    node = await shards.leading()
    node.process.pause()
    try:
        await shards.fleet.join(shards.fleet.processes[3], SERVICE, COUNT, "guest")
        shards.fleet.processes[1].kill9()
        await shards.passes(shards.times.timeout * 1.5)
    finally:
        node.process.resume()
    await shards.world.ready()
    await shards.settle("a node wakes")
    await shards.replace(1)
    await shards.fleet.leave("guest")


async def _server_restarts(server: Server, shards: ShardWorld) -> None:
    await asyncio.to_thread(server.restart)
    await shards.world.ready()


async def _all_nodes_are_killed(shards: ShardWorld) -> None:
    """For longer than a lease: members stop all they do by themselves. Five of them die meanwhile."""
    nodes = shards.world.nodes
    for node in nodes:
        node.process.kill9()
    await eventually(lambda: not any(shards.fleet.held(SERVICE).values()), deadline=3 * shards.times.lease)
    await holds(lambda: not any(shards.fleet.held(SERVICE).values()), during=shards.times.check)
    shards.fleet.processes[1].kill9()
    await shards.restart(*nodes)
    await shards.settle("all nodes are there again")
    await shards.replace(1)
