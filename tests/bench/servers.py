"""Which servers does the bench run on, and are they as durable as they come?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from orchestrix.persistence.schema import migrator
from tests.servers import lookup, postgres, rabbit
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.servers.run import Run
from tests.servers.sql import change_databases

TELEMETRY: Final = ("telemetry0", "telemetry1", "telemetry2")
HOSTS: Final = ("ours", "million", "celery", *TELEMETRY)
DATABASES: Final = ("ours", "million", "celery", "dbos", *TELEMETRY)
_DURABLE: Final = ("fsync", "synchronous_commit", "full_page_writes")


class NotDurable(Exception):
    """A server runs with settings that nobody would trust with data."""


class Postgres(PostgresServer):
    """PostgreSQL with the memory that it has by default: the one for tests makes do with less, and with files."""

    def argv(self) -> list[str]:
        return [*super().argv(), "-c", "shared_buffers=128MB", "-c", "dynamic_shared_memory_type=posix"]


class Rabbit(RabbitServer):
    """RabbitMQ on two processors: the one for tests makes do with one."""

    schedulers = 2


@dataclass(frozen=True, slots=True)
class Servers:
    """A broker and a database server of the bench's own."""

    run: Run
    rabbit: RabbitServer
    postgres: Postgres

    @property
    def pids(self) -> dict[str, int]:
        """Their main processes."""
        return {"postgresql": self.postgres.pid, "rabbitmq": self.rabbit.pid}

    def plain_url(self, database: str) -> str:
        """The address of a database without the name of a driver."""
        return self.postgres.url(database).replace("+asyncpg", "")

    def rows(self, database: str, query: str, timeout: float = 60.0) -> list[Mapping[str, Any]]:
        """The rows of one query."""
        return asyncio.run(_rows(self.plain_url(database), [query], timeout))

    def execute(self, database: str, statements: Sequence[str], timeout: float = 300.0) -> None:
        """Runs statements, each in a transaction of its own."""
        asyncio.run(_rows(self.plain_url(database), statements, timeout))


@contextmanager
def servers() -> Iterator[Servers]:
    """Fresh private servers with databases and virtual hosts. Raises `lookup.Missing` and `NotDurable`."""
    run = Run()
    try:
        yield _started(run)
    finally:
        run.close()


def _started(run: Run) -> Servers:
    programs = rabbit.find(), postgres.find()
    if programs[0] is None or programs[1] is None:
        missing = lookup.RABBITMQ if programs[0] is None else lookup.POSTGRESQL
        raise lookup.Missing(lookup.missing(missing))
    found = Servers(run, Rabbit(programs[0], run), Postgres(programs[1], run))
    found.rabbit.start()
    found.postgres.start()
    found.rabbit.change_vhosts(HOSTS, [])
    change_databases(found.postgres.url(), DATABASES, [])
    _check_durable(found)
    for name in ("ours", "million", *TELEMETRY):
        asyncio.run(migrator.upgrade(found.postgres.url(name)))
    return found


def _check_durable(found: Servers) -> None:
    for setting in _DURABLE:
        (row,) = found.rows("postgres", f"SHOW {setting}")
        if row[setting] != "on":
            raise NotDurable(f"PostgreSQL runs with {setting} = {row[setting]}")


async def _rows(url: str, statements: Sequence[str], timeout: float) -> list[Mapping[str, Any]]:
    connection = await asyncpg.connect(url, timeout=10)  # type: ignore[no-untyped-call]
    try:
        found: list[Mapping[str, Any]] = []
        for statement in statements:
            found = await connection.fetch(statement, timeout=timeout)
        return found
    finally:
        await connection.close()
