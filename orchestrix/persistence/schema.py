"""Does the database have the tables of this version, and how does it get them?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy import Connection, text

from orchestrix.errors import SchemaMismatch

from . import collations
from .drift import differences
from .engine import Database

if TYPE_CHECKING:
    from alembic.config import Config

HEAD: Final = "0009"
"""The newest revision in `migrations`; a constant, so that a start with everything in place need not load Alembic."""

SCRIPTS: Final = Path(__file__).resolve().parents[2] / "migrations"
"""Found beside `app` and not by import: a user's folder can have the same name."""

T = TypeVar("T")
_log = logging.getLogger(__name__)
for chatty in ("alembic", "asyncmy"):
    logging.getLogger(chatty).setLevel(logging.ERROR)
_LIMIT: Final = 600.0
"""Seconds that one statement of a migration may take, and the wait for another migration."""


async def current(database: Database) -> str | None:
    """The revision that the database has; None for one without any. Raises `Unavailable`."""
    async with database.read() as connection:
        try:
            found = await connection.execute(text("SELECT version_num FROM alembic_version"))
        except SchemaMismatch:
            return None
        revision: str | None = found.scalar_one_or_none()
        return revision


async def upgrade(url: str) -> list[str]:
    """Brings the schema to `HEAD`; one at a time, whoever calls. A sentence for each column that keeps or compares text
    in another way than this version needs, which no migration changes.

    Raises `Unavailable`, `SchemaMismatch` if it is ahead, and `ConfigError` if the database cannot hold all letters.
    Runs in a thread of its own: migrations block.
    """
    before, wrong = await _in_thread(url, lambda database: database.migrate(_upgraded), make=True)
    _log.info("schema %s", HEAD if before == HEAD else f"upgraded from {before or 'nothing'} to {HEAD}")
    for sentence in wrong:
        _log.warning("%s", sentence)
    return wrong


async def downgrade(url: str, revision: str) -> None:
    """Takes the schema back to `revision`, `base` for nothing at all. The data in dropped tables is lost."""
    before = await _in_thread(url, lambda database: database.migrate(lambda connection: _move(connection, revision)))
    _log.info("schema taken back from %s to %s", before or "nothing", revision)


async def check(url: str) -> list[str]:
    """A sentence for each thing in which the database differs from this version; empty if in nothing."""
    found = await _in_thread(url, lambda database: database.inspect(differences))
    _log.info("schema %s", f"differs: {'; '.join(found)}" if found else "is as expected")
    return found


async def _in_thread(url: str, work: Callable[[Database], Awaitable[T]], *, make: bool = False) -> T:
    return await asyncio.to_thread(lambda: asyncio.run(_with_database(url, work, make)))


async def _with_database(url: str, work: Callable[[Database], Awaitable[T]], make: bool) -> T:
    database = Database(url, pool_size=1, name="orchestrix-schema", statement_limit=_LIMIT, make=make)
    try:
        return await work(database)
    finally:
        await database.close()


def _upgraded(connection: Connection) -> tuple[str | None, list[str]]:
    if _revision(connection) is None:
        collations.check_new(connection)
    return _move(connection, HEAD), collations.differences(connection)


def _move(connection: Connection, target: str) -> str | None:
    from alembic import command
    from alembic.util import CommandError

    config = _config(connection)
    before = _revision(connection)
    try:
        (command.upgrade if target == HEAD else command.downgrade)(config, target)
    except CommandError as error:
        raise SchemaMismatch(f"the database has revision {before}, which this version does not know") from error
    return before


def _revision(connection: Connection) -> str | None:
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
