"""Collations: in which tables and columns a database keeps or compares text otherwise than this version needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, String, text

from orchestrix.errors import ConfigError
from orchestrix.persistence.schema.column_types import CHARSET, COLLATION, Json

_ENCODING: Final = "UTF8"
_MYSQL_COLUMNS: Final = text(
    "SELECT table_name, column_name, column_type, is_nullable, collation_name FROM information_schema.columns"
    " WHERE table_schema = DATABASE() AND collation_name IS NOT NULL ORDER BY table_name, ordinal_position"
)
_MYSQL_TABLES: Final = text(
    "SELECT table_name, table_collation FROM information_schema.tables WHERE table_schema = DATABASE()"
    " ORDER BY table_name"
)
_POSTGRESQL_COLUMNS: Final = text(
    "SELECT table_name, column_name, collation_name FROM information_schema.columns"
    " WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position"
)


def differences(connection: Connection) -> list[str]:
    """A sentence for each, with the statement that corrects it. The database's own default is no difference."""
    if connection.dialect.name == "mysql":
        return [*_mysql_tables(connection), *_mysql_columns(connection)]
    if connection.dialect.name == "postgresql":
        return [*_encoding(connection), *_postgresql_columns(connection)]
    return []


def check_new(connection: Connection) -> None:
    """Raises `ConfigError` for a database that could never hold what the tables are to hold."""
    if connection.dialect.name == "postgresql" and (wrong := _encoding(connection)):
        raise ConfigError(wrong[0])


def _mysql_tables(connection: Connection) -> Iterator[str]:
    ours = _columns()
    for name, collation in connection.execute(_MYSQL_TABLES):
        if name in ours and collation != COLLATION:
            yield (
                f"table {name} has the default collation {collation} in the database and {COLLATION} in this version:"
                f" run ALTER TABLE `{name}` DEFAULT CHARACTER SET {CHARSET} COLLATE {COLLATION}"
            )


def _mysql_columns(connection: Connection) -> Iterator[str]:
    ours = _columns()
    for table, column, type_, nullable, collation in connection.execute(_MYSQL_COLUMNS):
        if column in ours.get(table, {}) and collation != COLLATION:
            # Column by column: CONVERT TO would also change their types.
            null = "NULL" if nullable == "YES" else "NOT NULL"
            yield (
                f"column {table}.{column} has the collation {collation} in the database and {COLLATION} in this"
                f" version: run ALTER TABLE `{table}` MODIFY `{column}` {_text(type_)} CHARACTER SET {CHARSET}"
                f" COLLATE {COLLATION} {null}"
            )


def _encoding(connection: Connection) -> list[str]:
    found = connection.execute(text("SHOW server_encoding")).scalar_one()
    if found == _ENCODING:
        return []
    return [
        f"the database has the encoding {found}, which lacks some characters: create another one by CREATE DATABASE …"
        f" ENCODING '{_ENCODING}' TEMPLATE template0"
    ]


def _postgresql_columns(connection: Connection) -> Iterator[str]:
    ours = _columns()
    for table, name, found in connection.execute(_POSTGRESQL_COLUMNS):
        column = ours.get(table, {}).get(name)
        if column is None:
            continue
        type_ = column.type.dialect_impl(connection.dialect)
        wanted = getattr(type_, "collation", None)
        if found != wanted:
            words = type_.compile(connection.dialect).partition(" COLLATE ")[0]
            yield (
                f"column {table}.{name} has the {_named(found)} in the database and the {_named(wanted)} in this"
                f' version: run ALTER TABLE {table} ALTER "{name}" TYPE {words} COLLATE "{wanted or "default"}"'
            )


def _named(collation: str | None) -> str:
    return "default collation" if collation is None else f"collation {collation}"


def _text(type_: str | bytes) -> str:
    return type_.decode() if isinstance(type_, bytes) else type_


def _columns() -> dict[str, dict[str, Any]]:
    """Our columns that hold text, by table and name."""
    from orchestrix.persistence.tables import metadata

    return {
        name: {column.name: column for column in table.columns if _is_text(column.type)}
        for name, table in metadata.tables.items()
    }


def _is_text(type_: Any) -> bool:
    return isinstance(type_, String | Json)
