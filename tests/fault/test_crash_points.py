"""Is nothing lost, done twice or stuck, wherever a process dies?  A soak asks for every point on every database."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from orchestrix.crash import POINTS
from tests.acceptance.system import Client
from tests.architecture.source import PRODUCT, modules
from tests.fault.cases import CASES, DATABASES, databases
from tests.fault.cases_of_jobs import JOB_CASES
from tests.fault.cases_of_shards import SHARD_CASES
from tests.fault.crashing import APPS, IN_DEV, At, Rig, create, dev_dies, died
from tests.fault.usage import used
from tests.processes import Processes
from tests.servers import shared, templates
from tests.servers.names import Pool
from tests.servers.shared import Broker, Database
from tests.servers.sql import emptied
from tests.support import eventually

RUNS: Final = [
    (name, database)
    for name in CASES
    for database in (DATABASES if os.environ.get("ORCHESTRIX_SOAK") == "1" else databases(name))
]
DEATHS: Final = [At("worker.after_guard", 2), At("events.before_commit", 2), At("outbox.after_publish", 1)]


@pytest.fixture(scope="module")
def postgresql(postgres_server: Database, _postgres_databases: Pool) -> Iterator[str]:
    """A database with the schema, for all cases."""
    with shared.lent(_postgres_databases) as name:
        yield templates.upgraded(postgres_server.url(name))


@pytest.fixture(scope="module")
def mariadb(mariadb_server: Database, _mariadb_databases: Pool) -> Iterator[str]:
    """The same on MariaDB."""
    with shared.lent(_mariadb_databases) as name:
        yield templates.upgraded(mariadb_server.url(name))


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same in a file."""
    return templates.upgraded(f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('sqlite') / 'test.db'}")


@pytest.fixture
def database_url(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the case's database, which is emptied when the processes have gone."""
    url: str = request.getfixturevalue(database)
    yield url
    emptied(url)


@pytest.mark.req("S3-40", "S3-52", "S3-53", "S3-54", "S3-55")
@pytest.mark.parametrize(("name", "database"), RUNS)
async def test_a_process_dies(
    name: str,
    database: str,
    database_url: str,
    rabbitmq_url: str,
    processes: Processes,
    tmp_path: Path,
    scale: Callable[[int, int], int],
) -> None:
    case, first = CASES[name], DATABASES.index(database)
    rig = Rig(processes, tmp_path, database_url, rabbitmq_url)
    for passage in range(first, first + scale(1, 6)):
        await case.run(rig, name.partition(" ")[0], passage)


@pytest.mark.parametrize("point", IN_DEV)
async def test_dev_dies(point: str, processes: Processes, tmp_path: Path, scale: Callable[[int, int], int]) -> None:
    first = IN_DEV.index(point)
    for passage in range(first, first + scale(1, 3)):
        folder = tmp_path / str(passage)
        folder.mkdir()
        await dev_dies(processes, folder, At(point, 1 + passage % CASES[point].most))
        processes.close()


@pytest.mark.parametrize("database", ["postgresql"])
async def test_what_dead_processes_had_is_given_back(
    database_url: str,
    rabbitmq_server: Broker,
    rabbitmq_url: str,
    processes: Processes,
    tmp_path: Path,
    scale: Callable[[int, int], int],
) -> None:
    rig = Rig(processes, tmp_path, database_url, rabbitmq_url, ORCHESTRIX_DATABASE__POOL_SIZE="3")
    node, url = rig.node()
    await rig.ready(url)
    worker = rig.worker()

    async def work(count: int) -> None:
        rig.next_names(count)
        async with Client(url) as client:
            assert await create(client, rig.names, at_once=50) == list(rig.names)

    await work(100)
    await rig.all_well()
    before = await used(rig, (node, worker), rabbitmq_server)
    for at in DEATHS * scale(1, 10):
        doomed = await rig.armed(at)
        await work(30)
        await died(doomed, at)
        await rig.all_well(drafts=rig.rounds * APPS)

    async def given_back() -> bool:
        now = await used(rig, (node, worker), rabbitmq_server)
        assert now.above(before) is None, now.above(before)
        return True

    await eventually(given_back, deadline=20, every=0.5)


def test_points_at_the_database_are_asked_on_each_and_all_others_on_one_in_turns() -> None:
    asked = {name: databases(name) for name in CASES}
    assert {asked[name] for name in CASES if "commit" in name and " " not in name} == {DATABASES}
    assert (
        asked["outbox.after_claim"] == asked["redispatch.after_claim"] == asked["redispatch.after_chunk"] == DATABASES
    )
    others = [each for each in asked.values() if each != DATABASES]
    assert {len(each) for each in others} == {1}
    assert {each[0] for each in others} == set(DATABASES)


def test_every_point_of_the_code_is_declared_and_tested() -> None:
    passed = sorted(name for module in modules(*PRODUCT) for name in points_in(module.tree, OURS))
    assert passed == sorted(POINTS), "each point is passed at one place"
    service = [name for module in modules(*PRODUCT) for name in points_in(module.tree, SERVICES)]
    cases = {name.partition(" ")[0] for name in [*CASES, *JOB_CASES, *SHARD_CASES]}
    assert cases == {*POINTS, *service}, "each point has its case"


OURS = ("crash.point", "crash.within")
SERVICES = ("crash_point",)


def points_in(tree: ast.Module, calls: tuple[str, ...]) -> Iterator[str]:
    """The names of the points that a module passes by these calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls and node.args:
            assert isinstance(node.args[0], ast.Constant), "the name is written out, so that it can be found"
            yield str(node.args[0].value)
