"""How does a process come to a crash point of broadcasts, and how do others go on?"""

from __future__ import annotations

from typing import Any, Final

from tests.acceptance.system import Client
from tests.fault.crashing import At, died
from tests.fault.crashing_jobs import JobRig
from tests.fault.executor_deaths import Cluster
from tests.support import eventually

EXECUTORS: Final = 3


async def firing_of_a_broadcast_dies(rig: JobRig, at: At) -> None:
    """The leader, while it makes the children of a broadcast: the next one makes each once."""
    world = Cluster(rig)
    first = await world.start(0, **at.env)
    await world.ready(_group(rig), EXECUTORS)
    parent = await rig.broadcast_of_group(_group(rig))
    await died(first, at)
    made = await _children(rig, parent)
    assert made == (list(range(EXECUTORS)) if at.point.endswith("after_commit") else []), made
    await world.start(1)
    await eventually(lambda: _is(rig, parent, "SUCCEEDED"), deadline=30, every=0.1, message="the broadcast ends")
    assert await _children(rig, parent) == list(range(EXECUTORS)), "each shard once"


async def cancelling_of_children_dies(rig: JobRig, at: At) -> None:
    """The leader, while it cancels the children of a broadcast that a person has cancelled."""
    world = Cluster(rig)
    first = await world.start(0, **at.env)
    await world.ready(_group(rig), EXECUTORS)
    parent = await rig.broadcast_of_group(_group(rig), "patient")
    await rig.running(EXECUTORS)
    async with Client(world.url) as client:
        answer = await client.http.post(f"/jobs/{parent}/cancel", json={"reason": "not wanted"})
        assert answer.status_code == 200, answer.text
    await died(first, at)
    await world.start(1)
    await eventually(lambda: _is(rig, parent, "CANCELLED"), deadline=30, every=0.1, message="the broadcast ends")


def _group(rig: JobRig) -> str:
    """One without the executors of earlier rounds."""
    return f"shop-{rig.rounds}"


async def _children(rig: JobRig, parent: str) -> list[Any]:
    rows = await rig.sql(f"SELECT shard_index FROM jobs WHERE parent_id = '{parent}' ORDER BY shard_index")
    return [row[0] for row in rows]


async def _is(rig: JobRig, parent: str, state: str) -> bool:
    [(found, left)] = await rig.sql(f"SELECT state, children_left FROM jobs WHERE id = '{parent}'")
    return bool(found == state and left == 0)
