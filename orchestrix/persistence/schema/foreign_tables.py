"""Foreign tables: those of another program that stand in a database under names of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, Inspector, inspect

from orchestrix.errors import ConfigError

VERSION_TABLE: Final = "alembic_version"
_REVISION: Final = "version_num"
Tables = Mapping[str, frozenset[str]]
"""The columns of each table, by its name."""

_OURS: Final = re.compile(r"\d{4}")


def refuse_revisions(found: Sequence[object]) -> None:
    """Raises `ConfigError` if the version table says what no release of ours writes: another program migrates here."""
    if len(found) > 1 or not all(isinstance(one, str) and _OURS.fullmatch(one) for one in found):
        raise _refusal([VERSION_TABLE])


def refuse_version_table(connection: Connection) -> None:
    """Raises `ConfigError` if the version table has no revisions in it: another program keeps something else there."""
    found = inspect(connection)
    name = _existing(found, [VERSION_TABLE]).get(VERSION_TABLE)
    if name is not None and _REVISION not in _columns(found, name):
        raise _refusal([VERSION_TABLE])


def refuse(connection: Connection, revision: str | None, made: Callable[[], Mapping[str, Tables]]) -> None:
    """Raises `ConfigError` that names the tables of another program in the place of ours. Only reads.

    `revision` is what the version table says; `made` gives the tables of every revision, the oldest first. A table with
    all columns that ours was made with is ours, whatever the version table says: an upgrade that was cut off leaves it
    where the database cannot undo it (MySQL, MariaDB), and the next one continues from there.
    """
    from orchestrix.persistence.tables import metadata

    found = inspect(connection)
    existing = _existing(found, metadata.tables)
    if len(existing) == (0 if revision is None else len(metadata.tables)):
        return
    revisions = made()
    if revision is not None and revision not in revisions:
        return  # ahead of this version, which the upgrade says itself
    expected = revisions[revision] if revision is not None else {}
    foreign = set(_foreign(found, existing, revisions.values()))
    if expected and expected.keys().isdisjoint(existing.keys() - foreign):
        foreign.add(VERSION_TABLE)
    else:
        foreign -= expected.keys()  # ours, though they may have been changed by hand
    if foreign:
        raise _refusal(sorted(foreign))


def columns_of(found: Inspector) -> Tables:
    """All tables that are there."""
    return {name: _columns(found, name) for name in found.get_table_names()}


def _foreign(found: Inspector, existing: Mapping[str, str], revisions: Iterable[Tables]) -> Iterable[str]:
    """Which of the tables lack a column that ours had from the first."""
    first: dict[str, frozenset[str]] = {}
    for tables in revisions:
        first = {**tables, **first}
    return (name for name, here in existing.items() if not first[name] <= _columns(found, here))


def _existing(found: Inspector, ours: Iterable[str]) -> dict[str, str]:
    """Which of our names are taken, each with the name as it is written there. A view takes a name as well."""
    names = [*found.get_table_names(), *found.get_view_names(), *_stored_views(found)]
    fold = str.lower if found.dialect.name == "sqlite" else str  # where names differ by more than upper and lower case
    there = {fold(name): name for name in names}
    return {name: there[name] for name in ours if name in there}


def _stored_views(found: Inspector) -> list[str]:
    return found.get_materialized_view_names() if found.dialect.name == "postgresql" else []


def _columns(found: Inspector, table: str) -> frozenset[str]:
    return frozenset(column["name"].lower() for column in found.get_columns(table))


def _refusal(names: Sequence[str]) -> ConfigError:
    text = f"tables of another program use Orchestrix's names: {', '.join(names)}"
    if len(names) == 1:
        text = f"the table {names[0]} belongs to another program but has one of Orchestrix's names"
    return ConfigError(
        f"{text}; nothing was changed. Use another database in ORCHESTRIX_DATABASE_URL"
        " (in PostgreSQL another schema will do, by the search_path of the user)"
    )
