"""What happens to members of a service, to nodes and to servers, in the stories of shards?

Each act ends with twenty members that can work, and no link or server disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from tests.fault.proxy import Way
from tests.fault.shard_world import COUNT, EACH, SERVICE, ShardWorld
from tests.servers.base import Server
from tests.shard_fleet.intervals import machine_time
from tests.support import eventually, holds

Act = Callable[[ShardWorld], Awaitable[None]]


async def story(shards: ShardWorld, acts: Sequence[Act]) -> None:
    """One act after the other; after each of them every shard is held, and none has had two holders."""
    for act in acts:
        await act(shards)
        await shards.settle(act.func.__name__ if isinstance(act, partial) else getattr(act, "__name__", ""))


async def one_joins_and_leaves(shards: ShardWorld) -> None:
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


async def links_are_cut(shards: ShardWorld) -> None:
    """All members connect again, then all nodes, to the broker and to the database."""
    since, nodes = machine_time(), shards.world.nodes
    for links in (shards.links, [one for node in nodes for one in (node.broker, node.database)]):
        for link in links:
            link.reset()
        await shards.passes(shards.times.lease)
    assert shards.ended(since) == [], "a cut that is shorter than the lease interrupts nobody"


async def nodes_are_killed(shards: ShardWorld) -> None:
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


async def members_die_and_stand_still(shards: ShardWorld) -> None:
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


async def count_changes(shards: ShardWorld) -> None:
    """Whoever says another count than before says how many there are."""
    reports = (("worker-00", 10), ("worker-19", 5000), ("worker-15", 10))
    for worker, count in (*reports, ("worker-00", COUNT)):
        await shards.fleet.count(worker, count)
        await shards.settle(f"{count} shards", count)
    for worker, _ in reports:
        await shards.fleet.count(worker, COUNT)


async def messages_are_late(shards: ShardWorld) -> None:
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


async def a_node_stands_still(shards: ShardWorld) -> None:
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


async def server_restarts(server: Server, shards: ShardWorld) -> None:
    """In good order, as for an upgrade."""
    await asyncio.to_thread(server.restart)
    await shards.world.ready()


async def all_nodes_are_killed(shards: ShardWorld) -> None:
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


BRIEF: Final[Sequence[Act]] = (
    one_joins_and_leaves,
    links_are_cut,
    nodes_are_killed,
    members_die_and_stand_still,
    count_changes,
)
"""These last no longer than a lease, but for those to whom they happen."""
