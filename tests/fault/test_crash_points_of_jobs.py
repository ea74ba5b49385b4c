"""Is no job lost, done twice at once or stuck, wherever a node or a worker dies?  A soak asks on every database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import forks
from tests.fault.cases_of_jobs import JOB_CASES, Case
from tests.fault.crashing_jobs import Ground, JobRig
from tests.processes import Processes
from tests.servers.run import Run


@pytest.mark.req("S0-54", "S0-55", "S0-56", "S0-57", "S0-72", "S0-74", "S0-76")
@pytest.mark.parametrize("name", JOB_CASES)
async def test_a_process_dies(
    name: str,
    grounds: list[Ground],
    fork_server: forks.Forks,
    server_run: Run,
    tmp_path: Path,
    scale: Callable[[int, int], int],
) -> None:
    case, point = JOB_CASES[name], name.partition(" ")[0]
    fit = [one for one in grounds if one.many or not case.pair]
    first = list(JOB_CASES).index(name) % len(fit)
    rigs = [
        JobRig(one, partial(Processes, fork_server), tmp_path, run=server_run)
        for one in (fit + fit)[first:][: scale(1, len(fit))]
    ]
    async with asyncio.TaskGroup() as group:
        for turn, rig in enumerate(rigs):
            group.create_task(_deaths(case, rig, point, range(turn, turn + scale(1, 6))))


async def _deaths(case: Case, rig: JobRig, point: str, turns: range) -> None:
    for turn in turns:
        try:
            await case.run(rig, point, turn)
        except BaseException as error:
            error.add_note(f"on {rig.ground.name}, in {rig.folder}")
            raise
