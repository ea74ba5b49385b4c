"""Is nothing lost, doubled or stuck when everything goes wrong at once, in an order that can be had again?"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from tests.fault.nemesis import Act, Nemesis, plan
from tests.fault.world import LOSSLESS, World
from tests.servers.maria import MariaServer
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer

ROUNDS = 3
FEW = {"ORCHESTRIX_WORKER__CONCURRENCY": "4", "ORCHESTRIX_ORCHESTRATOR__BATCH": "20"}


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The one on the command line, or a new one."""
    given = request.config.getoption("nemesis_seed")
    return int(given) if given is not None else random.SystemRandom().randrange(1_000_000)


@pytest.fixture
def seconds(scale: Callable[[int, int], int]) -> int:
    """How long a round's faults go on."""
    return scale(10, 300)


def test_a_plan_follows_from_its_seed() -> None:
    assert plan(7, 60) == plan(7, 60)
    assert plan(7, 60) != plan(8, 60)


def test_a_plan_hits_one_target_at_a_time_and_spares_a_node() -> None:
    acts = plan(3, 300, heavy=True)
    for target in {act.target for act in acts}:
        mine = [act for act in acts if act.target == target]
        assert all(first.at + first.seconds < then.at for first, then in itertools.pairwise(mine))
    assert "node 0" not in {act.target for act in acts}
    assert {"node 1", "worker 0", "worker 1", "database", "broker"} <= {act.target for act in acts}
    assert max(act.at + act.seconds for act in acts) <= 300


@pytest.mark.parametrize("round_", range(ROUNDS - 1))
async def test_nemesis_on_postgresql(
    world: World, rabbitmq: RabbitServer, postgres: PostgresServer, vhost: str, seed: int, seconds: int, round_: int
) -> None:
    await _survives(world, Nemesis(world, rabbitmq, postgres, vhost), seed + round_, seconds)


async def test_nemesis_on_mariadb(
    maria_world: World, rabbitmq: RabbitServer, mariadb: MariaServer, vhost: str, seed: int, seconds: int
) -> None:
    await _survives(maria_world, Nemesis(maria_world, rabbitmq, mariadb, vhost), seed, seconds)


async def _survives(world: World, nemesis: Nemesis, seed: int, seconds: int) -> None:
    acts = plan(seed, seconds, heavy=seconds > 60)
    print(f"--nemesis-seed {seed}, {seconds} s", *acts, sep="\n")
    await world.up(nodes=2, workers=2, env=FEW)
    async with world.stream("nemesis", rate=12) as stream:
        await nemesis.run(acts)
        await stream.more(5)
    print(dict(stream.outcomes))
    assert sorted(nemesis.done, key=_place) == sorted(acts, key=_place)
    assert len(stream.answered) > seconds, "hardly any start was taken"
    await world.all_well(stream, deadline=LOSSLESS if seconds < 60 else 180)


def _place(act: Act) -> tuple[float, str]:
    return act.at, act.target
