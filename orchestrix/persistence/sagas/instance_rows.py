"""Instance rows: their columns, how they are read and written, and the statements that change many of them."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Select, literal, select

from orchestrix.persistence.cluster import installation
from orchestrix.persistence.dialects import BulkInsert, BulkUpdate
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.sagas.saga_tables import APPS, SagaTables
from orchestrix.saga.definition import TERMINAL
from orchestrix.saga.state import DEADLINE, NO_PROGRESS, UNSENT, Instance, InstanceProgress

_LIVE: Final = "state NOT IN ({})".format(", ".join(f"'{state}'" for state in sorted(TERMINAL)))
_COMMON: Final = (
    "created_by",
    "state",
    "version",
    "correlation_id",
    "command_id",
    "attempt",
    "wake_at",
    "wake_reason",
    "wait_ms",
    "blocker",
    "data",
    "definition_version",
    "created_at",
    "updated_at",
    "traceparent",
    "tracestate",
    "tries",
    "deadline_at",
    "begun_id",
    "sent_at",
    "hindered_by",
    "begun_at",
    "trace_head",
    "progress",
)
_MOVING: Final = (
    "state",
    "version",
    "command_id",
    "attempt",
    "wake_at",
    "wake_reason",
    "wait_ms",
    "blocker",
    "updated_at",
    "tries",
    "deadline_at",
    "hindered_by",
    "trace_head",
)
_JSON: Final = ("data", "progress")
_LATER: Final = ("begun_id", "sent_at", "hindered_by", "begun_at")
"""Columns that are empty when an instance begins and that a migration leaves: they are about one command alone."""
_BEGINNING: Final = tuple(name for name in _COMMON if name not in (*_JSON, *_LATER))
moving_values: Final = attrgetter(*_MOVING)
_begin: Final = attrgetter(*_BEGINNING)


@cache
def selection(pair: SagaTables) -> Select[Any]:
    """The columns of `Instance` in its own order."""
    table = pair.instances
    saga = literal(pair.saga).label("saga") if pair.saga else table.c.saga
    return select(table.c.id, saga, table.c[pair.key], *(table.c[name] for name in _COMMON))


async def instances_of(connection: Connection, pair: SagaTables, query: Select[Any]) -> list[Instance]:
    known = await installation.known(connection)
    return [instance_of(list(row), known.of(row[0], app=pair is APPS)) for row in await connection.execute(query)]


def instance_of(fields: list[Any], installation: str) -> Instance:
    fields[-1:] = [InstanceProgress.from_json(fields[-1]), installation]
    return Instance(*fields)


def json_of(instance: Instance) -> tuple[Any, ...]:
    # Nothing has gone wrong with nearly all of them: those need not be looked through.
    progress = None if instance.progress is NO_PROGRESS else instance.progress.to_json()
    return dict(instance.data), progress


def name_of(pair: SagaTables, instance: Instance) -> tuple[Any, ...]:
    return (instance.key,) if pair.saga else (instance.saga, instance.key)


def values_of(pair: SagaTables, instance: Instance) -> tuple[Any, ...]:
    return (*name_of(pair, instance), *_begin(instance), *json_of(instance))


@cache
def insertion(pair: SagaTables) -> BulkInsert:
    return BulkInsert(pair.instances, (*pair.unique, *_BEGINNING, *_JSON), key=pair.unique, marker="command_id")


@cache
def movement(pair: SagaTables) -> BulkUpdate:
    return BulkUpdate(pair.instances, match=("id", "version"), change=(*_MOVING, *_JSON))


@cache
def timer_update(pair: SagaTables) -> BulkUpdate:
    return BulkUpdate(
        pair.instances,
        match=("id", "version"),
        change=("wake_at", "wake_reason", "wait_ms", "sent_at", "hindered_by", "trace_head"),
        guard=f"{_LIVE} AND blocker IS NULL",
    )


@cache
def progress_update(pair: SagaTables) -> BulkUpdate:
    # Some databases find what they have changed by comparing it, which no JSON can be: so one more column is written.
    return BulkUpdate(pair.instances, match=("id", "version"), change=("attempt", "progress"), guard=_LIVE)


@cache
def late_confirmation(pair: SagaTables) -> BulkUpdate:
    return BulkUpdate(
        pair.instances,
        match=("id", "command_id"),
        change=("wake_reason", "wake_at", "wait_ms", "hindered_by"),
        guard=f"wake_reason IN ('{DEADLINE}', '{UNSENT}')",
    )
