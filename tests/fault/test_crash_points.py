"""Is nothing lost, done twice or stuck, wherever a process dies?  Every crash point, on every database."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from app.crash import POINTS
from tests.architecture.source import PRODUCT, modules
from tests.fault import forks
from tests.fault.crashing import CASES, At, rig_on
from tests.processes import Processes
from tests.servers.run import Run
from tests.support import eventually_sync

DATABASES: Final = ("postgresql", "mariadb", "sqlite")


@pytest.fixture(scope="module")
def fork_server(server_run: Run) -> Iterator[forks.Forks]:
    """Starts processes in a fraction of the time."""
    address, log = server_run.root / "forks", server_run.root / "forks.log"
    process = server_run.spawn(forks.argv(address), env=dict(os.environ), cwd=forks.ROOT, log=log)
    server = forks.Forks(address)
    eventually_sync(lambda: server.ready or process.poll(), deadline=60, message="the fork server is ready")
    assert server.ready, log.read_text()
    yield server
    server_run.kill(process)


@pytest.fixture
def processes(fork_server: forks.Forks, tmp_path: Path) -> Iterator[Processes]:
    """Product processes that are forked."""
    started = Processes(fork_server, tmp_path)
    yield started
    started.close()


@pytest.fixture
def url_of(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The address of an empty database of the test's own."""
    fixtures = {"postgresql": "postgres_url", "mariadb": "mariadb_url", "sqlite": "sqlite_url"}
    return lambda database: str(request.getfixturevalue(fixtures[database]))


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("point", CASES)
async def test_a_process_dies(
    point: str, database: str, processes: Processes, tmp_path: Path, rabbitmq_url: str, url_of: Callable[[str], str]
) -> None:
    case = CASES[point]
    at = At(point, 1 + DATABASES.index(database) % case.most)
    rig = await rig_on(processes, tmp_path, url_of(database), rabbitmq_url)
    names = await case.script(rig, at)
    await rig.all_well(names, drafts=case.drafts)


def test_every_point_of_the_code_is_declared_and_tested() -> None:
    passed = sorted(name for module in modules(*PRODUCT) for name in points_in(module.tree))
    assert passed == sorted(POINTS), "each point is passed at one place"
    assert sorted(CASES) == sorted(POINTS), "each point has its case"


def points_in(tree: ast.Module) -> Iterator[str]:
    """The names of the points that a module passes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("crash.point", "crash.within"):
            assert isinstance(node.args[0], ast.Constant), "the name is written out, so that it can be found"
            yield str(node.args[0].value)
