"""Saga definitions: one row for each version of a saga that any node has had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, literal, select, update

from orchestrix.domain.version_check import Definition, Key
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, saga_tables_of
from orchestrix.persistence.tables import saga_definitions
from orchestrix.saga.definition import TERMINAL

_COLUMNS: Final = ("saga", "version", "form", "digest", "body", "data_schema")


@dataclass(frozen=True, slots=True)
class StoredDefinition:
    """One version of a saga, as `orchestrix.saga.versions.serialization` writes it. `data_schema` is the JSON Schema
    of its data.
    """

    saga: str
    version: int
    form: int
    digest: str
    body: Mapping[str, Any]
    data_schema: Mapping[str, Any] | None = None

    @property
    def definition(self) -> Definition:
        """What is compared with other versions."""
        return Definition(self.saga, self.version, self.digest, self.body)

    @property
    def key(self) -> Key:
        """Which saga and version it is."""
        return self.saga, self.version


async def all_of(connection: Connection) -> list[StoredDefinition]:
    """Every version of every saga, by name and version."""
    table = saga_definitions.c
    query = select(*(table[name] for name in _COLUMNS)).order_by(table.saga, table.version)
    return [StoredDefinition(*row) for row in await connection.execute(query)]


async def some(connection: Connection, keys: Iterable[Key]) -> list[StoredDefinition]:
    """Those of `keys` that are stored."""
    wanted = set(keys)
    if not wanted:
        return []
    return [one for one in await all_of(connection) if one.key in wanted]


async def lock(tx: Transaction, saga: str, version: int) -> StoredDefinition | None:
    """One version, which no node can replace until the transaction ends; None if it is not stored."""
    table = saga_definitions.c
    query = select(*(table[name] for name in _COLUMNS)).where(table.saga == saga, table.version == version)
    found = (await tx.execute(query.with_for_update())).first()
    return StoredDefinition(*found) if found else None


async def insert(tx: Transaction, one: StoredDefinition) -> bool:
    """Stores a version; False if another node was first."""
    now = tx.now()
    values = {name: getattr(one, name) for name in _COLUMNS}
    return await tx.dialect.insert_one(tx, saga_definitions, {**values, "created_at": now, "updated_at": now})


async def replace(tx: Transaction, one: StoredDefinition) -> None:
    """Stores `one` in the place of what that version was."""
    table = saga_definitions.c
    values = {"form": one.form, "digest": one.digest, "body": one.body, "data_schema": one.data_schema}
    changed = update(saga_definitions).where(table.saga == one.saga, table.version == one.version)
    await tx.execute(changed.values({**values, "updated_at": tx.now()}))


async def live(connection: Connection, saga: str, version: int) -> int:
    """How many instances of that version have not ended."""
    pair = saga_tables_of(saga)
    table = pair.instances.c
    of_saga = [] if pair.saga else [table.saga == saga]
    query = select(func.count()).where(*of_saga, table.definition_version == version)
    return int((await connection.execute(query.where(table.state.not_in(sorted(TERMINAL))))).scalar_one())


async def any_live(connection: Connection, saga: str) -> bool:
    """Whether any instance of the saga, of whichever version, has not ended."""
    pair = saga_tables_of(saga)
    table = pair.instances.c
    of_saga = [] if pair.saga else [table.saga == saga]
    query = select(table.id).where(*of_saga, table.state.not_in(sorted(TERMINAL))).limit(1)
    return (await connection.execute(query)).first() is not None


async def live_states(connection: Connection) -> dict[Key, dict[str, int]]:
    """How many instances of each version have not ended, by their state."""
    found: dict[Key, dict[str, int]] = {}
    for pair in (APPS, INSTANCES):
        table = pair.instances.c
        saga = literal(pair.saga) if pair.saga else table.saga
        grouped = (*([] if pair.saga else [table.saga]), table.definition_version, table.state)
        query = select(saga, table.definition_version, table.state, func.count()).group_by(*grouped)
        for name, version, state, count in await connection.execute(query.where(table.state.not_in(sorted(TERMINAL)))):
            found.setdefault((name, version), {})[state] = count
    return found
