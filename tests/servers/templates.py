"""How does a test get a database with the schema without running all migrations?

They run once per server and process, in a database that is the template of the others.
"""

from __future__ import annotations

import asyncio
import atexit
import secrets
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.persistence.schema import migrator
from tests.servers import sql

_ADMIN: Final = {"postgresql": "postgres", "mysql": "mysql"}
"""A database that every server has."""


def upgraded(url: str) -> str:
    """`url`, whose database was empty or not there, and has the schema and an installation id of its own now."""
    where = make_url(url)
    if where.get_backend_name() == "sqlite":
        shutil.copy(_file(), str(where.database))
        with sqlite3.connect(str(where.database)) as connection:
            connection.execute("UPDATE installation SET installation = ?", (str(uuid.uuid4()),))
        connection.close()
    else:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _filled(where)).result()
    return url


@cache
def _file() -> Path:
    folder = tempfile.mkdtemp(prefix="orchestrix-template-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "template.db"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, migrator.upgrade(f"sqlite+aiosqlite:///{path}")).result()
    return path


async def _filled(url: URL) -> None:
    kind = url.get_backend_name()
    if url.database == _ADMIN[kind] or not await _can_copy(url):
        await migrator.upgrade(url.render_as_string(hide_password=False))
        return
    await _made(url)
    await _on(url.set(database=_ADMIN[kind]), partial(_COPY[kind], str(url.database)))
    renamed = f"UPDATE installation SET installation = '{uuid.uuid4()}'"
    await _on(url, lambda connection: connection.exec_driver_sql(renamed))


_NAME: Final = f"test_template_{secrets.token_hex(4)}"
"""Of this process alone: other runs may use the same server."""


async def _can_copy(url: URL) -> bool:
    """Whether this user may make databases: one that a test has made for itself may not."""
    try:
        await _on(url.set(database=_ADMIN[url.get_backend_name()]), lambda on: on.exec_driver_sql("SELECT 1"))
    except DBAPIError:
        return False
    return True


async def _made(url: URL) -> None:
    """Makes the template of that server, unless it is there."""
    kind = url.get_backend_name()
    admin, template = url.set(database=_ADMIN[kind]), url.set(database=_NAME)

    async def make(connection: AsyncConnection) -> None:
        if (await connection.exec_driver_sql(_FIND[kind])).first() is None:
            await connection.exec_driver_sql(_CREATE[kind])
            await migrator.upgrade(template.render_as_string(hide_password=False))

    await _on(admin, make)


def dropped(url: str) -> None:
    """Removes the template of a server that lives on."""
    admin = make_url(url)
    quoted = f'"{_NAME}"' if admin.get_backend_name() == "postgresql" else f"`{_NAME}`"
    sql.run_sql(url, f"DROP DATABASE IF EXISTS {quoted}")


async def _on(url: URL, work: Callable[[AsyncConnection], Awaitable[Any]]) -> None:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    try:
        async with asyncio.timeout(60), engine.connect() as connection:
            await work(connection)
    finally:
        await engine.dispose()


async def _copy_whole(name: str, connection: AsyncConnection) -> None:
    await connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}"')
    await connection.exec_driver_sql(f'CREATE DATABASE "{name}" TEMPLATE "{_NAME}"')


async def _copy_tables(name: str, connection: AsyncConnection) -> None:
    await connection.exec_driver_sql(f"USE `{name}`")
    await connection.exec_driver_sql("SET foreign_key_checks = 0")
    for table in (await connection.exec_driver_sql(f"SHOW TABLES FROM `{_NAME}`")).scalars().all():
        shown = await connection.exec_driver_sql(f"SHOW CREATE TABLE `{_NAME}`.`{table}`")
        await connection.exec_driver_sql(str(shown.mappings().one()["Create Table"]).replace("%", "%%"))
        await connection.exec_driver_sql(f"INSERT INTO `{table}` SELECT * FROM `{_NAME}`.`{table}`")


_FIND: Final = {
    "postgresql": f"SELECT 1 FROM pg_database WHERE datname = '{_NAME}'",
    "mysql": f"SELECT 1 FROM information_schema.schemata WHERE schema_name = '{_NAME}'",
}
_CREATE: Final = {
    "postgresql": f'CREATE DATABASE "{_NAME}" TEMPLATE template0',
    "mysql": f"CREATE DATABASE `{_NAME}` CHARACTER SET utf8mb4",
}
_COPY: Final = {"postgresql": _copy_whole, "mysql": _copy_tables}
