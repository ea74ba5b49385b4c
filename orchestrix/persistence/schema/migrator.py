"""Migrator: checks whether the database has the tables of this version, and upgrades it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.schema import SchemaItem

from orchestrix.errors import SchemaMismatch
from orchestrix.persistence.engine import Database
from orchestrix.persistence.schema import collations, foreign_tables

if TYPE_CHECKING:
    from alembic.config import Config

HEAD: Final = "0019"
"""The newest revision in `migrations`; a constant, so that a start with everything in place need not load Alembic."""
_KINDS: Final = {"fk": "foreign key", "table_comment": "comment of table"}


def scripts_of(package: Path) -> Path:
    """The folder of the migrations: within the package as a wheel has it, else beside it as in a checkout.

    Not found by import: a user's folder can have the same name.
    """
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


SCRIPTS: Final = scripts_of(Path(__file__).resolve().parents[2])

T = TypeVar("T")
_log = logging.getLogger(__name__)
for chatty in ("alembic", "asyncmy"):
    logging.getLogger(chatty).setLevel(logging.ERROR)
_MIGRATION_TIMEOUT_S: Final = 600.0
"""Seconds that one statement of a migration may take, and the wait for another migration."""


def differences(connection: Connection) -> list[str]:
    """A sentence for each difference."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from orchestrix.persistence.tables import metadata

    options = {"compare_type": True, "include_object": partial(_expected, connection.dialect.name)}
    context = MigrationContext.configure(connection, opts=options)
    found = [sentence for one in compare_metadata(context, metadata) for sentence in _described(one)]
    return [*found, *collations.differences(connection)]


def _expected(database: str, item: SchemaItem, *_: object) -> bool:
    """Whether the item is one for that kind of database: an index can be for others alone."""
    return item.info.get("not_on") != database


def _described(found: Any) -> Iterator[str]:
    """Alembic gives changes of one column as a list, and all else as a tuple of what it would do and to what."""
    if isinstance(found, list):
        for one in found:
            yield from _described(one)
        return
    action, _, kind = str(found[0]).partition("_")
    if action == "modify":
        old, new = (_value(kind, value) for value in found[5:7])
        yield f"column {found[2]}.{found[3]} {old} in the database and {new} in this version"
    else:
        here, there = ("this version", "the database") if action == "add" else ("the database", "this version")
        yield f"{_KINDS.get(kind, kind)} {_name(found)} is in {here} and not in {there}"


def _name(found: Any) -> str:
    """What the item is called; what belongs to a table is named with it."""
    item = found[-1]
    if len(found) == 4:
        return f"{found[2]}.{item.name}"
    table = getattr(item, "table", None)
    name = str(item.name or ", ".join(column.name for column in item.columns))
    return name if table is None else f"{table.name}.{name}"


def _value(kind: str, value: Any) -> str:
    if kind == "nullable":
        return "may be null" if value else "must not be null"
    return f"has the {kind} {getattr(value, 'arg', value)}"


async def current(database: Database) -> str | None:
    """The revision that the database has; None for one without any.

    Raises `Unavailable`, and `ConfigError` where another program keeps its own revision.
    """
    async with database.read() as connection:
        try:
            found = await connection.execute(text("SELECT version_num FROM alembic_version"))
        except SchemaMismatch:
            found = None
    if found is None:
        await database.inspect(foreign_tables.refuse_version_table)
        return None
    return _ours(found.scalars().all())


async def upgrade(url: str) -> list[str]:
    """Brings the schema to `HEAD`; one at a time, whoever calls. A sentence for each column that keeps or compares text
    in another way than this version needs, which no migration changes.

    Raises `Unavailable`, `SchemaMismatch` if it is ahead, and `ConfigError` if the database cannot hold all letters or
    has tables of another program under names of ours; nothing is changed then.
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
    _log.info("schema downgraded from %s to %s", before or "nothing", revision)


async def check(url: str) -> list[str]:
    """A sentence for each thing in which the database differs from this version; empty if in nothing."""
    found = await _in_thread(url, lambda database: database.inspect(differences))
    _log.info("schema %s", f"differs: {'; '.join(found)}" if found else "is as expected")
    return found


async def _in_thread(url: str, work: Callable[[Database], Awaitable[T]], *, make: bool = False) -> T:
    return await asyncio.to_thread(lambda: asyncio.run(_with_database(url, work, make)))


async def _with_database(url: str, work: Callable[[Database], Awaitable[T]], make: bool) -> T:
    database = Database(url, pool_size=1, name="orchestrix-schema", statement_limit=_MIGRATION_TIMEOUT_S, make=make)
    try:
        return await work(database)
    finally:
        await database.close()


def _upgraded(connection: Connection) -> tuple[str | None, list[str]]:
    revision = _revision(connection)
    if revision is None:
        collations.check_new(connection)
    foreign_tables.refuse(connection, revision, made)
    return _move(connection, HEAD), collations.differences(connection)


def _move(connection: Connection, target: str) -> str | None:
    from alembic import command
    from alembic.util import CommandError

    config = _config(connection)
    before = _revision(connection)
    try:
        (command.upgrade if target == HEAD else command.downgrade)(config, target)
    except CommandError as error:
        unknown = f"the database has revision {before}, which this version does not know"
        raise SchemaMismatch(f"{unknown}: upgrade Orchestrix") from error
    return before


def _revision(connection: Connection) -> str | None:
    from alembic.runtime.migration import MigrationContext

    foreign_tables.refuse_version_table(connection)
    return _ours(MigrationContext.configure(connection).get_current_heads())


def _ours(revisions: Sequence[str]) -> str | None:
    """The only one, or None without any."""
    foreign_tables.refuse_revisions(revisions)
    return revisions[0] if revisions else None


@cache
def made() -> dict[str, foreign_tables.Tables]:
    """The tables of every revision, the oldest first, as the scripts make them in a database in memory."""
    from alembic import command
    from alembic.script import ScriptDirectory

    engine = create_engine("sqlite://")
    try:
        with engine.connect() as connection:
            config = _config(connection)
            tables: dict[str, foreign_tables.Tables] = {}
            for script in reversed([*ScriptDirectory.from_config(config).walk_revisions()]):
                command.upgrade(config, script.revision)
                tables[script.revision] = foreign_tables.columns_of(inspect(connection))
            return tables
    finally:
        engine.dispose()


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
