"""Which systems do the acceptance tests run on?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.installed import Installed, build, installed
from tests.acceptance.system import System
from tests.processes import Processes


@pytest.fixture
def system(request: pytest.FixtureRequest, processes: Processes, tmp_path: Path, rabbitmq_url: str) -> System:
    """RabbitMQ and PostgreSQL, or the database of `EVERY_DATABASE`, with the schema in place; no process yet."""
    database: str = request.getfixturevalue(f"{getattr(request, 'param', 'postgres')}_url")
    made = System(processes, tmp_path, database, rabbitmq_url)
    made.upgrade()
    return made


@pytest.fixture
def system_on(processes: Processes, tmp_path: Path) -> Callable[[str, str], System]:
    """A system on the given database and broker, with the schema in place."""

    def make(database_url: str, broker_url: str) -> System:
        made = System(processes, tmp_path, database_url, broker_url)
        made.upgrade()
        return made

    return make


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the library."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel and without the repository."""
    return installed(wheel, tmp_path_factory.mktemp("fresh") / "environment")
