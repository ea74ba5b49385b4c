"""Shard fence: refuses writes for a shard under an epoch that is over, in a database of the author's."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Integer, Select, bindparam, column, func, select, table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.sql.expression import TableClause

from orchestrix.errors import ConfigError, ShardLost

_WITH_RETURNING: Final = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_MYSQL: Final = ("mysql", "mariadb")


async def check(tx: AsyncConnection | AsyncSession, name: str, shard: int, epoch: int) -> None:
    """Stores the epoch of the shard, and locks its row until the end of the transaction, so that no later epoch is
    stored before what this transaction writes.

    `name` is that of a table with the columns `shard`, its primary key, and `epoch`, after that of a schema and a dot
    if need be. Raises `ShardLost` where a later epoch is stored: roll back then. Raises `ConfigError` for a database
    that is none of PostgreSQL, MariaDB, MySQL and SQLite.
    """
    dialect = tx.dialect.name if isinstance(tx, AsyncConnection) else tx.get_bind().dialect.name
    epochs, given = _table(name), {"shard": shard, "epoch": epoch}
    if dialect in _WITH_RETURNING:
        stored = await _upsert_returning(tx, dialect, epochs, given)
    elif dialect in _MYSQL:
        stored = await _upsert_then_read(tx, epochs, given)
    else:
        raise ConfigError(f"fenced: {dialect} is not supported: use PostgreSQL, MariaDB, MySQL or SQLite")
    if stored != epoch:
        raise ShardLost(
            f"shard {shard} was given to a process under the later epoch {stored}: "
            f"nothing may be written for it under epoch {epoch}"
        )


async def _upsert_returning(
    tx: AsyncConnection | AsyncSession, dialect: str, epochs: TableClause, given: dict[str, int]
) -> int:
    """The row is returned where it was inserted or updated."""
    insert: Any = _WITH_RETURNING[dialect](epochs).values(**given)
    later = insert.excluded.epoch
    upsert = insert.on_conflict_do_update(
        index_elements=[epochs.c.shard], set_={"epoch": later}, where=epochs.c.epoch <= later
    ).returning(epochs.c.epoch)
    stored = (await tx.execute(upsert)).scalar()
    return int(stored) if stored is not None else await _stored(tx, _one(epochs), given)


async def _upsert_then_read(tx: AsyncConnection | AsyncSession, epochs: TableClause, given: dict[str, int]) -> int:
    """What MySQL counts as changed depends on the client: the row is read."""
    insert = mysql.insert(epochs).values(**given)
    await tx.execute(insert.on_duplicate_key_update(epoch=func.greatest(epochs.c.epoch, insert.inserted.epoch)))
    return await _stored(tx, _one(epochs).with_for_update(), given)


async def _stored(tx: AsyncConnection | AsyncSession, query: Select[Any], given: dict[str, int]) -> int:
    return int((await tx.execute(query, {"wanted": given["shard"]})).scalar_one())


def _one(epochs: TableClause) -> Select[Any]:
    return select(epochs.c.epoch).where(epochs.c.shard == bindparam("wanted"))


def _table(name: str) -> TableClause:
    schema, _, own = name.rpartition(".")
    return table(own, column("shard", Integer), column("epoch", BigInteger), schema=schema or None)
