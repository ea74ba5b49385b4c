"""How are databases made and dropped on a server, whichever it is?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

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


def emptiable() -> list[str]:
    """The tables that a test begins without a row in. What makes effect keys unlike those of others stays."""
    return [table.name for table in reversed(metadata.sorted_tables) if table.name != "installation"]


def emptied() -> list[str]:
    """The statements that empty them."""
    return [f"DELETE FROM {name}" for name in emptiable()]


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
