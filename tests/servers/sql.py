"""How are databases made and dropped on a server, whichever it is?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.persistence.tables import metadata


def run_sql(url: str, *statements: str, timeout: float = 60.0) -> None:
    """Runs the statements, each in a transaction of its own. Raises the driver's errors and TimeoutError.

    In a thread, because the caller may be a fixture of a test that has an event loop.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, _run_sql(url, statements, timeout)).result()


async def _run_sql(url: str, statements: Sequence[str], timeout: float) -> None:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    try:
        async with asyncio.timeout(timeout), engine.connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)
    finally:
        await engine.dispose()


_EMPTY_POSTGRES: Final = """\
DO $$
DECLARE grown text;
BEGIN
    SELECT string_agg(name, ', ') INTO grown FROM unnest(ARRAY[{names}]) AS name
        WHERE pg_relation_size(name::regclass) > {most};
    IF grown IS NOT NULL THEN EXECUTE 'TRUNCATE ' || grown || ' CASCADE'; END IF;
    {deletions};
    PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S';
END $$"""
_MOST_BYTES: Final = 250_000
"""Bytes of a table from which on it is cut off: to do that to all of them costs ten times as much as to delete rows."""


def emptied(url: str) -> str:
    """`url`, whose tables have no row now. What makes effect keys unlike those of others stays.

    On PostgreSQL, numbers that the database gives begin again.
    """
    names = [table.name for table in reversed(metadata.sorted_tables) if table.name != "installation"]
    deletions = [f"DELETE FROM {name}" for name in names]
    if make_url(url).get_backend_name() != "postgresql":
        run_sql(url, *deletions)
        return url
    quoted = ", ".join(f"'{name}'" for name in names)
    run_sql(url, _EMPTY_POSTGRES.format(names=quoted, most=_MOST_BYTES, deletions="; ".join(deletions)))
    return url


def answers_sql(url: str) -> bool:
    """Whether the server lets us in and answers a query within three seconds."""
    try:
        run_sql(url, "SELECT 1", timeout=3.0)
    except (OSError, DBAPIError, TimeoutError):
        return False
    return True


def change_databases(url: str, add: Sequence[str], drop: Sequence[str]) -> None:
    """Adds empty databases and drops used ones, whoever is still connected to them."""
    if make_url(url).get_backend_name() == "postgresql":
        gone = [f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)' for name in drop]
        new = [f'CREATE DATABASE "{name}" TEMPLATE template0' for name in add]
    else:
        gone = [f"DROP DATABASE IF EXISTS `{name}`" for name in drop]
        new = [f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4" for name in add]
    run_sql(url, *gone, *new)


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return make_url(url).set(database=name).render_as_string(hide_password=False)
