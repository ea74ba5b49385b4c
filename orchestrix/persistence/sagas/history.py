"""Saga history: what has happened to an instance, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import and_, case, func, or_, select

from orchestrix.persistence.dialects import BulkInsert, BulkUpdate
from orchestrix.persistence.dialects.port import Row
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.storable_text import cleaned
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.changes import ATTEMPT_FAILED, STEP_FAILED, STEP_HELD, STEP_SUCCEEDED
from orchestrix.saga.definition import COMPENSATING, COMPENSATION_FAILED, FAILED
from orchestrix.saga.state import StateChange
from orchestrix.saga.versions.former_changes import FAILURES, completed

_FIELDS: Final = (
    "version",
    "from_state",
    "to_state",
    "reason",
    "actor",
    "correlation_id",
    "caused_by",
    "command_id",
    "at",
    "kind",
    "step",
    "message_type",
    "message_id",
    "error_type",
    "error",
    "trace_id",
    "sent_at",
    "begun_at",
)
_UNDOING: Final = (COMPENSATING, COMPENSATION_FAILED)
_DONE: Final = (STEP_SUCCEEDED, SagaAction.SKIP.value)
_MESSAGE_ID: Final = 255
_ERROR_TYPE: Final = 200


async def insert(tx: Transaction, pair: SagaTables, rows: Sequence[tuple[int, StateChange]]) -> None:
    """Inserts rows of (instance id, change); raises `ConflictError` if a version of an instance is there already."""
    bulk, values = additions(pair, rows)
    if values:
        await tx.dialect.insert(tx, bulk, values)


async def sent(tx: Transaction, pair: SagaTables, commands: Sequence[tuple[int, str]], at: datetime) -> None:
    """Notes that these (instance id, command id) were sent, if it is not noted: in the first row that names each.

    Later rows name the command too, of what has happened while it was pending.
    """
    if not commands:
        return
    table, known = pair.history.c, set(commands)
    owner, first = table[pair.owner], func.min(table.version)
    query = select(owner, table.command_id, first).group_by(owner, table.command_id)
    query = query.where(tx.dialect.among(owner, sorted({id for id, _ in known})))
    query = query.where(tx.dialect.among(table.command_id, sorted({command_id for _, command_id in known})))
    found = await tx.execute(query)
    rows = sorted((id, version, at) for id, command_id, version in found if (id, command_id) in known)
    if rows:
        await tx.dialect.update(tx, _sending(pair), rows)


def additions(pair: SagaTables, rows: Sequence[tuple[int, StateChange]]) -> tuple[BulkInsert, list[Row]]:
    """What `insert` does, for those who do more with it at once."""
    return _insert(pair), [_values(id, change) for id, change in sorted(rows, key=lambda row: (row[0], row[1].version))]


async def listing(
    connection: Connection, pair: SagaTables, id: int, after_version: int, limit: int
) -> list[StateChange]:
    """Up to `limit` changes of an instance behind `after_version`, the oldest first."""
    table = pair.history
    query = select(*(table.c[name] for name in _FIELDS)).where(
        table.c[pair.owner] == id, table.c.version > after_version
    )
    return [StateChange(*row) for row in await connection.execute(query.order_by(table.c.version).limit(limit))]


async def run_began(connection: Connection, pair: SagaTables, id: int) -> int:
    """The version with which the present run of an instance began, by its start or by a retry of what had failed."""
    table = pair.history.c
    begun = or_(table.from_state.is_(None), and_(table.from_state == FAILED, table.to_state != FAILED))
    query = select(func.max(table.version)).where(table[pair.owner] == id, begun)
    return int((await connection.execute(query)).scalar() or 0)


async def had_failed(connection: Connection, pair: SagaTables, id: int, after: int, before: int) -> bool:
    """Whether a failure between these versions of an instance was followed by no success of its step."""
    table = pair.history.c
    done = and_(table.kind.in_(_DONE), table.from_state.not_in(_UNDOING))
    told = or_(table.error_type.is_not(None), table.kind.is_(None), done)
    query = select(*(table[name] for name in _FIELDS)).where(table[pair.owner] == id)
    query = query.where(table.version > after, table.version < before, told).order_by(table.version.desc())
    for change in (StateChange(*row) for row in await connection.execute(query)):
        kind = completed(change).kind
        if change.error_type is not None or (change.kind is None and kind in FAILURES):
            return True
        if kind in _DONE and change.from_state not in _UNDOING:
            return False
    return False


async def failure_of_run(connection: Connection, pair: SagaTables, id: int, after: int) -> StateChange | None:
    """The failure of a step, not of an undo, that ended the run of an instance which began with the version `after`.

    None where there is none, or its row is of an earlier release, which did not say what it is about.
    """
    table = pair.history.c
    of_run = table[pair.owner] == id, table.version > after, table.kind == STEP_FAILED
    query = select(*(table[name] for name in _FIELDS)).where(*of_run, table.from_state.not_in(_UNDOING))
    row = (await connection.execute(query.order_by(table.version.desc()).limit(1))).first()
    return None if row is None else StateChange(*row)


async def attempts_until(
    connection: Connection, pair: SagaTables, id: int, after: int, failure: StateChange
) -> int | None:
    """How many attempts of its step `failure` ended, behind the version `after`; those before a wait for a person, who
    gives the step new ones, do not count. None if rows between are of an earlier release and do not say it.
    """
    table = pair.history.c
    of_step = and_(table.step == failure.step, table.from_state.not_in(_UNDOING))
    held = func.max(case((and_(of_step, table.kind == STEP_HELD), table.version)))
    of_run = table[pair.owner] == id, table.version > after, table.version < failure.version
    query = select(held, func.count() - func.count(table.kind)).where(*of_run)
    last_held, unknown = (await connection.execute(query)).one()
    if unknown or failure.step is None:
        return None
    since_held = table.version > (last_held or after), of_step, table.kind == ATTEMPT_FAILED
    failed = await connection.execute(select(func.count()).where(*of_run, *since_held))
    return int(failed.scalar_one()) + 1


def _values(id: int, change: StateChange) -> tuple[Any, ...]:
    return (
        id,
        change.version,
        change.from_state,
        change.to_state,
        cleaned(change.reason),
        change.actor,
        change.correlation_id,
        _perhaps(change.caused_by, _MESSAGE_ID),
        change.command_id,
        change.at,
        change.kind,
        change.step,
        change.message_type,
        _perhaps(change.message_id, _MESSAGE_ID),
        _perhaps(change.error_type, _ERROR_TYPE),
        _perhaps(change.error),
        change.trace_id,
        change.sent_at,
        change.begun_at,
    )


def _perhaps(text: str | None, limit: int | None = None) -> str | None:
    return None if text is None else cleaned(text, limit)


@cache
def _sending(pair: SagaTables) -> BulkUpdate:
    return BulkUpdate(pair.history, match=(pair.owner, "version"), change=("sent_at",), guard="sent_at IS NULL")


@cache
def _insert(pair: SagaTables) -> BulkInsert:
    return BulkInsert(pair.history, (pair.owner, *_FIELDS))
