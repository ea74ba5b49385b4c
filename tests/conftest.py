"""What can every test ask for?"""

from __future__ import annotations

import gc
import inspect
import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests import compiled_statements, forks
from tests.ledger import Ledger
from tests.otlp import OtlpReceiver, otlp_receiver
from tests.processes import Processes
from tests.servers import lookup, shared, sql, templates
from tests.servers.base import Server
from tests.servers.host import ServerHost
from tests.servers.maria import MariaServer
from tests.servers.names import Pool
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.servers.run import Run
from tests.servers.shared import Broker, Database
from tests.tally import Tally
from tests.tracing import RecordedSpans, recorded_spans

# Nothing that is imported or collected ever becomes garbage: a look at all of it costs half a second, again and again.
gc.disable()

_HOST: Final = pytest.StashKey[ServerHost]()
_COUNT: Final = count()
_SOAKING = os.environ.get("ORCHESTRIX_SOAK") == "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nemesis-seed", dest="nemesis_seed", type=int, help="the plan of faults to repeat")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ledger(config), "ledger")
    config.pluginmanager.register(Tally(), "tally")
    compiled_statements.keep()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Which process runs which test, where several do (`-n auto`) and nobody asks for another way (`--dist`)."""
    from tests.together import Together  # pytest-xdist may be switched off

    return Together(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """In how many processes the tests are run by `-n auto`."""
    from tests.together import processes

    return processes([str(arg) for arg in config.args])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a new test process where to ask for the servers that all of them share."""
    stash = node.config.stash
    if _HOST not in stash:
        stash[_HOST] = ServerHost()
    node.workerinput["server_host"] = str(stash[_HOST].address)


def pytest_unconfigure(config: pytest.Config) -> None:
    """All test processes have ended."""
    if _HOST in config.stash:
        config.stash[_HOST].close()
        del config.stash[_HOST]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tells the line of a test. pytest would ask the file system for each whether its file is there."""
    code = getattr(inspect.unwrap(item.function), "__code__", None) if isinstance(item, pytest.Function) else None
    file = _in_root(item.path, item.config.rootpath) if code is not None else None
    if code is not None and file is not None and code.co_filename == str(item.path):
        item.location = file, code.co_firstlineno - 1, item.getmodpath()  # type: ignore[attr-defined]


@cache
def _in_root(path: Path, root: Path) -> str | None:
    return str(path.relative_to(root)) if path.is_relative_to(root) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A soak runs only the tests that have a long variant."""
    if not _SOAKING:
        return
    short = [item for item in items if "scale" not in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in short]
    config.hook.pytest_deselected(items=short)


def pytest_collection_finish() -> None:
    """From here on garbage is looked for, among what the tests make, but not after every few hundred objects."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own. pytest's fixture of that name looks through the folders of all tests before."""
    name = re.sub(r"[^a-z0-9]+", "_", request.node.name.lower())[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}_{next(_COUNT)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="session")
def server_run(pytestconfig: pytest.Config) -> Iterator[Run]:
    """The folder and the reaper of this process's servers and test processes; the shared servers are the host's."""
    host = getattr(pytestconfig, "workerinput", {}).get("server_host")
    run = Run(Path(host) if host else None, in_memory=True)
    yield run
    run.close()


# The servers of the whole run: started when the first test asks, never stopped or changed by a test.


@pytest.fixture(scope="session")
def rabbitmq_server(server_run: Run) -> Iterator[Broker]:
    """The shared broker; ask for `rabbitmq_url` instead unless you need several virtual hosts."""
    with shared.broker(server_run) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres_server(server_run: Run) -> Iterator[Database]:
    """The shared PostgreSQL."""
    with shared.database(lookup.POSTGRESQL, server_run) as database:
        yield database


@pytest.fixture(scope="session")
def mariadb_server(server_run: Run) -> Iterator[Database]:
    """The shared MariaDB."""
    with shared.database(lookup.MARIADB, server_run) as database:
        yield database


@pytest.fixture(scope="session")
def _vhosts(rabbitmq_server: Broker) -> Iterator[Pool]:
    with shared.pool(rabbitmq_server.change_vhosts, batch=5, keep=not lookup.given(lookup.RABBITMQ)) as names:
        yield names


@pytest.fixture(scope="session")
def _postgres_databases(postgres_server: Database) -> Iterator[Pool]:
    with _databases(postgres_server, lookup.POSTGRESQL) as names:
        yield names


@pytest.fixture(scope="session")
def _mariadb_databases(mariadb_server: Database) -> Iterator[Pool]:
    with _databases(mariadb_server, lookup.MARIADB) as names:
        yield names


def _databases(server: Database, kind: lookup.Kind) -> AbstractContextManager[Pool]:
    admin = server.url()
    return shared.pool(lambda add, drop: sql.change_databases(admin, add, drop), batch=5, keep=not lookup.given(kind))


# One test's own corner of a shared server.


@pytest.fixture
def rabbitmq_url(rabbitmq_server: Broker, _vhosts: Pool) -> Iterator[str]:
    """`amqp://…` of a virtual host that is empty and this test's alone."""
    with shared.lent(_vhosts) as name:
        yield rabbitmq_server.url(name)


@pytest.fixture
def postgres_url(postgres_server: Database, _postgres_databases: Pool) -> Iterator[str]:
    """`postgresql+asyncpg://…` of an empty database that is this test's alone."""
    with shared.lent(_postgres_databases) as name:
        yield postgres_server.url(name)


@pytest.fixture
def mariadb_url(mariadb_server: Database, _mariadb_databases: Pool) -> Iterator[str]:
    """`mysql+asyncmy://…` of an empty database that is this test's alone."""
    with shared.lent(_mariadb_databases) as name:
        yield mariadb_server.url(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """`sqlite+aiosqlite:///…` of a file that does not exist yet."""
    return f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"


# The same with all tables: one database for all tests of this process, where a new one would cost half a second.


@pytest.fixture(scope="session")
def postgresql_tables(postgres_server: Database, _postgres_databases: Pool) -> Iterator[str]:
    """The database of `postgres_store`, with what the test before has left in it."""
    with shared.lent(_postgres_databases) as name:
        yield templates.upgraded(postgres_server.url(name))


@pytest.fixture(scope="session")
def mariadb_tables(mariadb_server: Database, _mariadb_databases: Pool) -> Iterator[str]:
    """The database of `mariadb_store`, with what the test before has left in it."""
    with shared.lent(_mariadb_databases) as name:
        yield templates.upgraded(mariadb_server.url(name))


@pytest.fixture
def postgres_store(postgresql_tables: str) -> str:
    """`postgresql+asyncpg://…` of a database with all tables, for what lies in this process and ends with the test."""
    return sql.emptied(postgresql_tables)


@pytest.fixture
def mariadb_store(mariadb_tables: str) -> str:
    """`mysql+asyncmy://…` of the same."""
    return sql.emptied(mariadb_tables)


@pytest.fixture
def sqlite_store(sqlite_url: str) -> str:
    """`sqlite+aiosqlite:///…` of the same, in a file of the test's own."""
    return templates.upgraded(sqlite_url)


# Servers that a test may stop, kill and freeze.


@pytest.fixture
def private_rabbitmq(server_run: Run) -> Iterator[Callable[[], RabbitServer]]:
    """Starts a RabbitMQ of the test's own, at each call (about 9 s)."""
    with _factory(lookup.RABBITMQ, server_run) as start:
        yield cast(Callable[[], RabbitServer], start)


@pytest.fixture
def private_postgres(server_run: Run) -> Iterator[Callable[[], PostgresServer]]:
    """Starts a PostgreSQL of the test's own, at each call (about 1 s)."""
    with _factory(lookup.POSTGRESQL, server_run) as start:
        yield cast(Callable[[], PostgresServer], start)


@pytest.fixture
def private_mariadb(server_run: Run) -> Iterator[Callable[[], MariaServer]]:
    """Starts a MariaDB of the test's own, at each call (about 2 s)."""
    with _factory(lookup.MARIADB, server_run) as start:
        yield cast(Callable[[], MariaServer], start)


@contextmanager
def _factory(kind: lookup.Kind, run: Run) -> Iterator[Callable[[], Server]]:
    started: list[Server] = []

    def start() -> Server:
        server = lookup.private_server(kind, run)
        started.append(server)
        server.start()
        return server

    try:
        yield start
    finally:
        for server in started:
            server.discard()


@pytest.fixture(scope="session")
def fork_server(server_run: Run) -> Iterator[forks.Forks]:
    """Has imported the product once for all processes."""
    with forks.running(server_run) as server:
        yield server


@pytest.fixture
def processes(fork_server: forks.Forks, tmp_path: Path) -> Iterator[Processes]:
    """Starts product processes (`spawn`, `run`); ends them with the test and shows their logs if it failed.

    They are forked: each saves a second or two of the processor's time.
    """
    started = Processes(fork_server, tmp_path)
    yield started
    started.close()


@pytest.fixture
def programs(server_run: Run, tmp_path: Path) -> Iterator[Processes]:
    """The same with an interpreter of its own for each, as a shell starts them: for what lies before the first line."""
    started = Processes(server_run, tmp_path)
    yield started
    started.close()


@pytest.fixture
def scale() -> Callable[[int, int], int]:
    """`scale(few, many)`: how often to repeat; `few` in `make test`, `many` in `make soak`."""
    return lambda few, many: many if _SOAKING else few


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the end of each product process's log to the report of a failed test."""
    report = yield
    for started in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(started, Processes):
            report.sections.extend(started.logs())
    return report


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Lets a report travel to the process that shows it, whatever letters a test has printed or compared."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    """The same without halves of letters, which no message between the processes can hold."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_sendable(name): _sendable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_sendable, value))
    return value


@pytest.fixture
def otlp() -> Iterator[OtlpReceiver]:
    """A receiver of spans, for processes that are started with its `environment()`."""
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    """The spans that the code under test makes; without this fixture it makes none."""
    with recorded_spans() as recorded:
        yield recorded
