"""Do coordinators come through outages and stops of nodes without a word of panic, and members without a change?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests import forks
from tests.fault.crashing_jobs import Ground
from tests.fault.crashing_shards import ShardRig
from tests.fault.shard_members import check_intervals
from tests.processes import Process, Processes
from tests.servers import shared, templates
from tests.servers.base import Server
from tests.servers.names import Pool
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.support import eventually, holds

WORKERS = ("w-1", "w-2", "w-3")
OUTAGE_S = 12.0
"""Three times as long as the time-out of members."""


@pytest.fixture
def ground(rabbitmq: RabbitServer, vhost: str, postgres: PostgresServer, _postgres_names: Pool) -> Iterator[Ground]:
    """Servers that may be stopped."""
    with shared.lent(_postgres_names) as name:
        yield Ground("postgresql", templates.upgraded(postgres.url(name)), rabbitmq.url(vhost))


@pytest.fixture
async def rig(ground: Ground, fork_server: forks.Forks, tmp_path: Path) -> AsyncIterator[ShardRig]:
    """Where two coordinators and three members are to run."""
    made = ShardRig(ground, partial(Processes, fork_server), tmp_path)
    await made.next_round()
    yield made
    await made.close()


async def up(rig: ShardRig) -> list[Process]:
    """Two nodes whose members share the shards."""
    nodes = [*await asyncio.gather(rig.ready_coordinator(), rig.ready_coordinator())]
    await rig.join(*WORKERS)
    await rig.shared(*WORKERS)
    return nodes


@contextmanager
def away(server: Server) -> Iterator[None]:
    """The server is killed, and started again at the end."""
    server.kill9()
    try:
        yield
    finally:
        server.start()


@pytest.mark.req("S1-5", "S4-41")
@pytest.mark.parametrize("which", ["broker", "database"])
async def test_an_outage_changes_nothing_and_logs_no_stack_trace(
    rig: ShardRig, which: str, rabbitmq: RabbitServer, postgres: PostgresServer
) -> None:
    nodes = await up(rig)
    await asyncio.to_thread(rabbitmq.settle)
    before = {one.worker_id: one.generation for one in rig.members}
    server: Server = rabbitmq if which == "broker" else postgres
    with away(server):
        await holds(lambda: True, during=OUTAGE_S)
    await rig.shared(*WORKERS, deadline=60.0)
    assert {one.worker_id: one.generation for one in rig.members} == before, "nobody was silent by fault of his own"
    check_intervals(rig.members)
    for node in nodes:
        assert "paused" in node.log() or "lost" in node.log() or "cannot" in node.log(), "it has noticed"
        assert "Traceback" not in node.log()
        assert "inactive" not in node.log()


@pytest.mark.req("X-2")
async def test_a_node_that_is_stopped_leaves_its_members_to_the_others_at_once(rig: ShardRig) -> None:
    one, other = await up(rig)
    before = {member.worker_id: member.generation for member in rig.members}
    lapses = [member.lapses for member in rig.members]
    one.terminate()
    assert await one.exited(deadline=30) == 0
    asked = {member.worker_id: member.seq for member in rig.members}
    await eventually(
        lambda: all(member.answered > asked[member.worker_id] for member in rig.members),
        deadline=10,
        message="the other node answers each",
    )
    assert {member.worker_id: member.generation for member in rig.members} == before
    assert [member.lapses for member in rig.members] == lapses
    assert "Traceback" not in one.log() + other.log()
    await rig.all_well()
