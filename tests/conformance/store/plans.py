"""How does a database find the rows of the very statements that the store sends?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrix.persistence.engine import Database

PRIMARY = "PRIMARY"
_LOOKS = re.compile(r"^(WITH|SELECT|UPDATE|DELETE)\b")
_SQLITE = re.compile(r"^(?P<how>SCAN|SEARCH) (?P<table>\w+)( USING (COVERING )?(INDEX )?(?P<index>\w+))?")
_KEYS = {"INTEGER": PRIMARY, "sqlite_autoindex_outbox_1": PRIMARY, "sqlite_autoindex_dead_letters_1": PRIMARY}
_PG_PRIMARY = re.compile(r"^(pk_\w+|\w+_pkey)$")


@dataclass(frozen=True)
class Access:
    """One table of a plan. `index` is None where all rows are read; `bounded` says that it is read in part."""

    table: str
    index: str | None
    bounded: bool


@dataclass(frozen=True)
class Sent:
    """A statement as the driver got it."""

    sql: str
    parameters: Any


@contextmanager
def watched(database: Database) -> Iterator[list[Sent]]:
    """The statements that `database` sends meanwhile and that look for rows."""
    sent: list[Sent] = []
    engine = engine_of(database).sync_engine

    def before(_connection: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, many: bool) -> None:
        if _LOOKS.match(sql.lstrip()):
            sent.append(Sent(sql, parameters[0] if many else parameters))

    event.listen(engine, "before_cursor_execute", before)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", before)


def engine_of(database: Database) -> AsyncEngine:
    """The engine below a store."""
    return database._engine


async def accesses(database: Database, sent: Sent) -> list[Access]:
    """How the database would find the rows of each table now."""
    explain, read = {
        "postgresql": ("EXPLAIN (FORMAT JSON)", _postgresql),
        "mysql": ("EXPLAIN", _mysql),
        "sqlite": ("EXPLAIN QUERY PLAN", _sqlite),
    }[database.dialect.name]
    async with engine_of(database).connect() as connection:
        rows = (await connection.exec_driver_sql(f"{explain} {sent.sql}", sent.parameters)).mappings().all()
    return list(read([dict(row) for row in rows]))


async def analyse(database: Database, *tables: str) -> None:
    """Lets the database count its rows."""
    word = "ANALYZE TABLE" if database.dialect.name == "mysql" else "ANALYZE"
    async with engine_of(database).connect() as connection:
        for table in tables:
            (await connection.exec_driver_sql(f"{word} {table}")).close()
        await connection.commit()


def _postgresql(rows: list[dict[str, Any]]) -> Iterator[Access]:
    (plan,) = rows[0]["QUERY PLAN"]
    yield from _nodes(plan["Plan"])


def _nodes(node: dict[str, Any]) -> Iterator[Access]:
    children = node.get("Plans", [])
    table, kind = node.get("Relation Name"), node["Node Type"]
    if table and "Scan" in kind:
        found = next(_indexes(node), None)
        name = _PG_PRIMARY.sub(PRIMARY, found["Index Name"]) if found else None
        yield Access(table, name, found is not None and "Index Cond" in found)
    for child in children:
        yield from _nodes(child)


def _indexes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Index Name" in node:
        yield node
    if node["Node Type"].startswith("Bitmap"):
        for child in node.get("Plans", []):
            yield from _indexes(child)


def _mysql(rows: list[dict[str, Any]]) -> Iterator[Access]:
    for row in rows:
        table, how = row["table"], row["type"]
        if table and table != "v" and not table.startswith("<") and how is not None:
            key = row["key"] and row["key"].partition("|")[0]  # behind it, another one by which MariaDB leaves rows out
            yield Access(table, key, how not in ("ALL", "index"))


def _sqlite(rows: list[dict[str, Any]]) -> Iterator[Access]:
    for row in rows:
        found = _SQLITE.match(row["detail"])
        if found and found["table"] != "json_each" and "VIRTUAL TABLE" not in row["detail"]:
            yield Access(found["table"], _KEYS.get(found["index"], found["index"]), found["how"] == "SEARCH")
