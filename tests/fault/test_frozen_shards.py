"""Do members of a shard service keep what they run while a coordinator is frozen that has their heartbeats in hand?"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests import forks
from tests.fault.crashing_jobs import Ground
from tests.fault.crashing_shards import ShardRig
from tests.fault.shard_members import check_intervals
from tests.processes import Processes
from tests.support import holds

WORKERS = tuple(f"w-{number}" for number in range(6))
"""An even number, whose heartbeats keep their order: the broker gives those of each second one to the same node."""
FROZEN_S = 24.0
"""Longer than the time-out, and than a connection without heartbeats of its own would last."""


@pytest.mark.req("S1-5", "S1-38")
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
async def test_a_frozen_coordinator_interrupts_no_member(
    name: str, grounds: list[Ground], fork_server: forks.Forks, tmp_path: Path
) -> None:
    (ground,) = [one for one in grounds if one.name == name]
    rig = ShardRig(ground, partial(Processes, fork_server), tmp_path, timeout_s=15.0, beat_s=3.0, check_s=5.0)
    await rig.next_round()
    try:
        nodes = await asyncio.gather(rig.ready_coordinator(), rig.ready_coordinator())
        for worker in WORKERS:
            await rig.join(worker)
            await holds(lambda: True, during=rig.beat_s / len(WORKERS))  # so that their heartbeats keep their order
        await rig.shared(*WORKERS)
        asked = {one.worker_id: one.seq for one in rig.members}
        before = {one.worker_id: one.generation for one in rig.members}
        nodes[0].pause()
        try:
            await holds(lambda: all(one.running for one in rig.members), during=FROZEN_S, every=0.2)
        finally:
            nodes[0].resume()
        assert [one.lapses for one in rig.members] == [0] * len(WORKERS)
        assert all(one.answered > asked[one.worker_id] for one in rig.members)
        for node in nodes:
            assert "inactive" not in node.log()
        assert {one.worker_id: one.generation for one in rig.members} == before, "nothing has changed"
        await rig.all_well()
        check_intervals(rig.members)
    finally:
        await rig.close()
