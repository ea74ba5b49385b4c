"""Poison commands: those that end every worker are found, and cost the good ones no more than a few deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrix.saga.definition import COMPLETED, FAILED
from tests.acceptance.system import System
from tests.conformance.broker.brokers import Background, start_embedded
from tests.fault.outside import Supervisor, all_in, all_kept, node_of, parcels_env, rows, start_all
from tests.fault.parcels import PARCEL, POISON, SLOW
from tests.processes import Processes
from tests.servers import templates
from tests.support import eventually

DEATHS = 30
"""So many workers may die until every good command is done."""
SIGTERMS = 24
"""More than a broker of today gives a message out (20), and than a command may kill (19)."""


@pytest.fixture(params=["rabbitmq", "strict"])
def system(request: pytest.FixtureRequest, processes: Processes, tmp_path: Path, postgres_url: str) -> Iterator[System]:
    """One on each broker, with the schema in place."""
    templates.upgraded(postgres_url)
    if request.param == "rabbitmq":
        yield System(processes, tmp_path, postgres_url, request.getfixturevalue("rabbitmq_url"))
        return
    background = Background()
    broker = start_embedded(background, request.param)
    yield System(processes, tmp_path, postgres_url, broker.server.url)
    processes.close()
    broker.stop()
    background.close()


async def test_good_commands_are_done_within_thirty_deaths(system: System, scale: Callable[[int, int], int]) -> None:
    env = parcels_env(system.folder, PARCELS_QUICK="0.3", ORCHESTRIX_WORKER__CONCURRENCY="20")
    _, url = await node_of(system, **env)
    count = scale(4, 10)
    poison = [f"{POISON}-{n}" for n in range(count)]
    good = [f"good-{n}" for n in range(10 * count)]
    mixed = [name for n in range(count) for name in (poison[n], *good[10 * n : 10 * n + 10])]
    await start_all(url, PARCEL, mixed)
    async with Supervisor(lambda: system.worker(**env)) as supervisor:
        await eventually(lambda: supervisor.deaths >= 3, deadline=60, message="some workers have died")
        await supervisor.restart(within=20)
        await all_in(system.database_url, PARCEL, good, (COMPLETED,), deadline=scale(120, 300))
        deaths = supervisor.deaths
        await all_in(system.database_url, PARCEL, poison, (FAILED,), deadline=scale(240, 600))
        print(f"the good ones were done after {deaths} deaths, the others after {supervisor.deaths}")
    assert deaths <= scale(20, DEATHS)
    ledger = await all_kept(system.database_url, PARCEL, mixed)
    for one in ledger.apps:
        crashes = [reason for reason in one.reasons if reason.startswith("evt.stepFailed: WorkerCrashed")]
        assert len(crashes) == (1 if one.name in poison else 0), f"{one.name}: {one.reasons}"
        assert not [reason for reason in one.reasons if "deadline" in reason], f"{one.name}: {one.reasons}"


async def test_restarts_are_no_deaths(system: System) -> None:
    """What is in hand is given back at each of them, and neither counts against it nor is taken away by the broker."""
    env = parcels_env(
        system.folder,
        PARCELS_WORK="4",
        ORCHESTRIX_WORKER__CONCURRENCY="4",
        ORCHESTRIX_WORKER__STOP_TIMEOUT="0.1",
    )
    _, url = await node_of(system, **env)
    slow = [f"{SLOW}-{n}" for n in range(4)]
    async with Supervisor(lambda: system.worker(**env)) as supervisor:
        await supervisor.served()
        await start_all(url, PARCEL, slow)
        for _ in range(SIGTERMS):
            await supervisor.restart(within=10)
        await all_in(system.database_url, PARCEL, slow, (COMPLETED,), deadline=60)
        assert supervisor.deaths == 0
    ledger = await all_kept(system.database_url, PARCEL, slow)
    assert all(one.reasons == ["created", "evt.packed"] for one in ledger.apps), [one.reasons for one in ledger.apps]
    assert await rows(system.database_url, "SELECT reason FROM dead_letters") == []
