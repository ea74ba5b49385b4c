"""Is no shard lost or given to two members, wherever a coordinator dies?  A soak asks on every database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import forks
from tests.fault.cases_of_shards import SHARD_CASES, Case
from tests.fault.crashing_jobs import Ground
from tests.fault.crashing_shards import ShardRig
from tests.processes import Processes


@pytest.mark.req("S4-41", "S4-42", "S4-43", "S1-4")
@pytest.mark.parametrize("name", SHARD_CASES)
async def test_a_coordinator_dies(
    name: str, grounds: list[Ground], fork_server: forks.Forks, tmp_path: Path, scale: Callable[[int, int], int]
) -> None:
    case, point = SHARD_CASES[name], name.partition(" ")[0]
    fit = [one for one in grounds if one.many or not case.pair]
    first = list(SHARD_CASES).index(name) % len(fit)
    rigs = [
        ShardRig(one, partial(Processes, fork_server), tmp_path) for one in (fit + fit)[first:][: scale(1, len(fit))]
    ]
    async with asyncio.TaskGroup() as group:
        for turn, rig in enumerate(rigs):
            group.create_task(_deaths(case, rig, point, range(turn, turn + scale(1, 6))))


async def _deaths(case: Case, rig: ShardRig, point: str, turns: range) -> None:
    for turn in turns:
        try:
            await case.run(rig, point, turn)
        except BaseException as error:
            error.add_note(f"on {rig.ground.name}, in {rig.folder}")
            raise
