"""Installation: reads the id of the database."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select, update

from orchestrix import clock
from orchestrix.domain.installation import Installation
from orchestrix.errors import SchemaMismatch
from orchestrix.persistence.engine import Connection, Database, Transaction
from orchestrix.persistence.tables import installation

_ONLY: Final = 1
MISSING: Final = (
    "the row of the table `installation` is missing, which effect keys are built from:"
    " restore the whole of the backup, or run `orchestrix db clone-reset`"
)
HALF_RESET: Final = "`orchestrix db clone-reset` did not finish in this database: run it again"


async def known(connection: Connection) -> Installation:
    """The row as this process has read it first: it changes only while no process runs. Raises `SchemaMismatch`."""
    database = connection.database
    if database.installation is None:
        database.installation = await read(connection)
    return database.installation


async def read(connection: Connection) -> Installation:
    """The row as it is now. Raises `SchemaMismatch` where it is missing, or half changed."""
    found = await find(connection)
    if found is None:
        raise SchemaMismatch(MISSING)
    if found.resetting is not None:
        raise SchemaMismatch(HALF_RESET)
    return found


async def report_key(database: Database) -> bytes:
    """The secret by which the reports of executors are recognised. It is drawn once for a database, and only a clone
    gets another one.

    Raises `SchemaMismatch` where the row is missing, and `Unavailable`.
    """
    async with database.read() as connection:
        found = await _key(connection)
    if found is None:
        drawn = "".join(clock.token() for _ in range(4))
        found = await database.run(lambda tx: _key_or(tx, drawn))
    return bytes.fromhex(found)


async def _key(connection: Connection) -> str | None:
    row = (await connection.execute(select(installation.c.report_key).where(installation.c.id == _ONLY))).first()
    if row is None:
        raise SchemaMismatch(MISSING)
    return None if row.report_key is None else str(row.report_key)


async def _key_or(tx: Transaction, drawn: str) -> str:
    """The key; `drawn`, if none was stored yet: of several nodes, the first one draws it."""
    new = update(installation).where(installation.c.id == _ONLY, installation.c.report_key.is_(None))
    await tx.execute(new.values(report_key=drawn))
    return await _key(tx) or drawn


async def find(connection: Connection) -> Installation | None:
    """The row, unchecked; None without one."""
    table = installation.c
    query = select(table.installation, table.last_app_id, table.last_instance_id, table.resetting)
    row = (await connection.execute(query.where(table.id == _ONLY))).first()
    return Installation(*row) if row else None
