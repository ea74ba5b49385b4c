"""A database that is read-only for a while: it is told meanwhile, and starts are taken soon after it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy.exc import DBAPIError

from tests.fault.load import HealthWatch
from tests.fault.world import LOSSLESS, NO_GIT, World
from tests.servers import shared
from tests.servers.maria import MariaServer
from tests.servers.names import Pool
from tests.servers.postgres import PostgresServer
from tests.servers.sql import run_sql
from tests.support import eventually

WRITES_WITHIN = 15.0
"""Seconds after the phase in which starts are taken again."""
PLAIN = "plain"
"""A user of MariaDB that may do everything in its database and nothing else: the others' may write in spite of
`read_only`."""


async def test_postgresql_is_read_only_for_new_sessions(
    world: World, postgres: PostgresServer, scale: Callable[[int, int], int]
) -> None:
    """As after a fail-over: the old sessions are ended, and the new ones can write nothing for as long as they live."""

    @asynccontextmanager
    async def phase() -> AsyncIterator[None]:
        database = world.system.database_url.rpartition("/")[2]
        change = f'ALTER DATABASE "{database}" SET default_transaction_read_only = '
        hang_up = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
        await asyncio.to_thread(run_sql, postgres.url(), change + "on", hang_up)
        try:
            yield
        finally:
            await asyncio.to_thread(run_sql, postgres.url(), change + "off")

    await _told_and_over(world, phase, scale(3, 25))


@pytest.fixture
def plain_world(worlds: Callable[[str], World], mariadb: MariaServer, _mariadb_names: Pool) -> Iterator[World]:
    """A world on MariaDB whose processes have no privilege that `read_only` spares."""
    with shared.lent(_mariadb_names) as name:
        run_sql(
            mariadb.url(),
            f"CREATE OR REPLACE USER '{PLAIN}'@'127.0.0.1' IDENTIFIED BY 'secret'",
            f"GRANT ALL PRIVILEGES ON `{name}`.* TO '{PLAIN}'@'127.0.0.1'",
        )
        yield worlds(mariadb.url(name).replace("orchestrix:", f"{PLAIN}:", 1))


@pytest.mark.parametrize("variable", ["read_only", "tx_read_only"])
async def test_mariadb_is_read_only(
    plain_world: World, mariadb: MariaServer, variable: str, scale: Callable[[int, int], int]
) -> None:
    """The server for all but administrators; or each session that begins in the phase, for as long as it lives."""

    @asynccontextmanager
    async def phase() -> AsyncIterator[None]:
        await asyncio.to_thread(run_sql, mariadb.url(), f"SET GLOBAL {variable} = 1")
        try:
            await _hang_up(plain_world)
            yield
        finally:
            await asyncio.to_thread(run_sql, mariadb.url(), f"SET GLOBAL {variable} = 0")

    await _told_and_over(plain_world, phase, scale(3, 25))


async def _hang_up(world: World) -> None:
    mine = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    for row in await world.sql(mine):
        with suppress(DBAPIError):  # it has gone by itself
            await world.sql(f"KILL {row[0]}")


async def _told_and_over(world: World, phase: Callable[[], object], seconds: int) -> None:
    await world.up(env=NO_GIT)
    async with world.stream("write") as stream, HealthWatch(world.urls[0]) as health:
        await stream.more(15)
        async with phase():  # type: ignore[attr-defined]
            await health.says("Database")
            await eventually(lambda: bool(stream.refused), deadline=20, message="starts are refused")
            await _doctor_says_so(world)
            await eventually(_after(seconds), deadline=seconds + 5)
        answered = len(stream.answered)
        await stream.until(lambda: len(stream.answered) > answered, deadline=WRITES_WITHIN, message="a start is taken")
        await health.is_well(within=WRITES_WITHIN)
        refused = len(stream.refused)
        await stream.more(40)
        assert len(stream.refused) == refused, "every session can write again"
    await world.all_well(stream, deadline=LOSSLESS)


def _after(seconds: float) -> Callable[[], bool]:
    ends = asyncio.get_running_loop().time() + seconds
    return lambda: asyncio.get_running_loop().time() >= ends


async def _doctor_says_so(world: World) -> None:
    system = world.system
    env = system.env(ORCHESTRIX_API_URL=world.urls[0])
    doctor = await system.processes.run_async("doctor", env=env, timeout=60)
    assert doctor.returncode == 1, doctor.stdout
    lines = [line for line in doctor.stdout.splitlines() if "database" in line.lower()]
    assert any("read-only" in line or "read only" in line for line in lines), doctor.stdout
