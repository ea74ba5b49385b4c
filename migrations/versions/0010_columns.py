"""Columns for facts that answers need: what a history row is about, when commands were sent and begun, what hinders.

The types, and the reading of former texts, are written out here and not taken from the code, which goes on while this
page stays. Nodes of the former release run beside it: all columns may be empty, and their rows stay so.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
HISTORIES = {"apps": ("app_state_history", "app_id"), "saga_instances": ("saga_history", "instance_id")}
INSTANCES_PER_BATCH = 500
ROWS_PER_STATEMENT = 1000
MIGRATION_LOCK = 0x6F72636865737478
"""The advisory lock by which migrations in PostgreSQL wait for each other."""
FAILURE_EVENT = "evt.stepFailed"
VERBS = ("retry", "skip", "edit", "pause", "resume", "cancel", "terminate", "set-deadline", "cancel-deadline")
VERB = re.compile(rf"({'|'.join(VERBS)}): ")
RETRY = re.compile(r"retry [0-9]+: ")
TYPE = re.compile(r"([^\s:]{1,200}): ")
EVENT = re.compile(r"[^\s:]{1,110}")


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    for instances, (history, _) in HISTORIES.items():
        # Instances before their history, as each transaction of a node locks them: else they would wait for each other.
        _add(instances, sa.Column("hindered_by", sa.String(20)))
        _add(instances, sa.Column("begun_at", TIME))
        for column in _history_columns():
            _add(history, column)
    _fill()
    for instances in HISTORIES:
        _hindered_index(instances)


def downgrade() -> None:
    for history, _ in HISTORIES.values():
        for column in reversed(_history_columns()):
            _drop(history, column.name)
    for instances in HISTORIES:
        if f"ix_{instances}_hindered" in _indexes(instances):
            op.drop_index(f"ix_{instances}_hindered", instances)
        _drop(instances, "begun_at")
        _drop(instances, "hindered_by")


def _hindered_index(instances: str) -> None:
    """Of the few that are hindered. MySQL has no such indexes."""
    name, few = f"ix_{instances}_hindered", sa.text("hindered_by IS NOT NULL")
    if op.get_bind().dialect.name != "mysql" and name not in _indexes(instances):
        if op.get_bind().dialect.name == "postgresql":
            # The lock that later revisions of this transaction need: a weaker one first, as the index takes, would be
            # one that a node and the upgrade both wait to raise.
            op.get_bind().exec_driver_sql(f"LOCK TABLE {instances} IN ACCESS EXCLUSIVE MODE")
        op.create_index(name, instances, ["id"], postgresql_where=few, sqlite_where=few)


def _history_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("kind", sa.String(20)),
        sa.Column("step", sa.String(100)),
        sa.Column("message_type", sa.String(110)),
        sa.Column("message_id", sa.String(255)),
        sa.Column("error_type", sa.String(200)),
        sa.Column("error", sa.Text()),
        sa.Column("trace_id", sa.String(32)),
        sa.Column("sent_at", TIME),
        sa.Column("begun_at", TIME),
    ]


class Facts(NamedTuple):
    """What a former row says. Its event is the message that it consumed where `message_type` is there."""

    kind: str | None = None
    step: str | None = None
    message_type: str | None = None
    error_type: str | None = None
    error: str | None = None


class Definition(NamedTuple):
    """The names of one version of a saga: its steps by state and by event, and the undo's event by step."""

    by_state: dict[str, str]
    by_event: dict[str, str]
    undo_events: dict[str, str]


class Reader:
    """Reads the rows of one instance in their order."""

    def __init__(self, names: Definition) -> None:
        self.names = names
        self.paused = False
        self.deferred: str | None = None

    def read(self, row: Any) -> Facts:
        """The facts of the next row."""
        reason = str(row.reason)
        if row.from_state is None:
            return Facts("created")
        if reason == "immediate":
            return Facts("immediate")
        if (verb := VERB.match(reason)) is not None:
            return self._verb(verb[1], row)
        if reason.startswith("undone: "):
            return Facts("compensated")
        if reason.startswith("undone "):
            step = reason.removeprefix("undone ")
            return Facts("step_undone", step, self.names.undo_events.get(step) if row.caused_by else None)
        for kind, begin in (("cloned", "cloned: "), ("unsendable", "unsendable: "), ("migrated", "migrated ")):
            if reason.startswith(begin):
                return Facts(kind)
        return self._event(reason, row)

    def _verb(self, verb: str, row: Any) -> Facts:
        if verb in ("pause", "resume", "cancel", "terminate"):
            self.paused = verb == "pause"
        return Facts(verb, self.names.by_state.get(row.from_state))

    def _event(self, reason: str, row: Any) -> Facts:
        if (retry := RETRY.match(reason)) is not None:
            return self._failure("attempt_failed", reason[retry.end() :], row)
        if reason.startswith("held: "):
            kind = "failure_deferred" if self.paused else "step_held"
            return self._failure(kind, reason.removeprefix("held: "), row)
        if reason == "deadline" or reason.startswith((f"{FAILURE_EVENT}: ", "QueueTimeout: ")):
            return self._failure("step_failed", reason, row)
        if EVENT.fullmatch(reason) is not None:
            return Facts("step_succeeded", self.names.by_event.get(reason), reason)
        return Facts()

    def _failure(self, kind: str, said: str, row: Any) -> Facts:
        answered = said.startswith(f"{FAILURE_EVENT}: ") or (kind == "step_held" and row.caused_by is not None)
        error = said.removeprefix(f"{FAILURE_EVENT}: ")
        message_key = row.caused_by or error  # not the text where there is an id: each row has cut it elsewhere
        told_before = self.deferred == message_key
        self.deferred = message_key if kind == "failure_deferred" else None
        message = FAILURE_EVENT if answered and not told_before else None
        return Facts(kind, self.names.by_state.get(row.from_state), message, _error_type(kind, error), error)


def _error_type(kind: str, error: str) -> str | None:
    if error == "deadline":
        return "Deadline"
    named = TYPE.match(error)
    return named[1] if named is not None else "Hold" if kind == "step_held" else None


def _fill() -> None:
    """Fills the rows that are there, a batch of instances at a time. Running it again does no harm."""
    bind = op.get_bind()
    if not any(_batch(bind, instances) for instances in HISTORIES):
        return
    alone = bind.dialect.name == "sqlite"  # one writer: its transaction is what keeps other migrations out
    if bind.dialect.name == "postgresql":
        # The locks that adding columns has taken must not be held while rows are filled; that on migrations must.
        bind.exec_driver_sql(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
    definitions = _definitions(bind)
    for instances in HISTORIES:
        last = 0
        while batch := _batch(bind, instances, last):
            if not alone:
                bind.commit()
            _fill_batch(bind, instances, batch, definitions)
            last = batch[-1].id
    if not alone:
        bind.commit()
    if bind.dialect.name == "postgresql":
        bind.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        bind.exec_driver_sql(f"SELECT pg_advisory_unlock({MIGRATION_LOCK})")


def _batch(bind: sa.Connection, instances: str, after: int = 0) -> list[Any]:
    table = _table(instances, "id", "definition_version", "saga")
    saga = sa.literal("app").label("saga") if instances == "apps" else table.c.saga
    query = sa.select(table.c.id, saga, table.c.definition_version).where(table.c.id > after)
    return list(bind.execute(query.order_by(table.c.id).limit(INSTANCES_PER_BATCH)))


def _definitions(bind: sa.Connection) -> dict[tuple[str, int], Definition]:
    """The stored ones; an instance of another version has rows without the names of steps."""
    table = _table("saga_definitions", "saga", "version", "body")
    found = bind.execute(sa.select(table.c.saga, table.c.version, table.c.body))
    return {(row.saga, row.version): _definition(row.body) for row in found}


def _definition(stored: Any) -> Definition:
    body = json.loads(stored) if isinstance(stored, str | bytes) else stored
    names = Definition({}, {}, {})
    for step in body.get("steps", ()):
        names.by_state[step["state"]] = names.by_event[step["event"]] = step["name"]
        undo = step.get("undo")
        if isinstance(undo, dict) and "event" in undo:
            names.undo_events[step["name"]] = undo["event"]
    return names


def _fill_batch(
    bind: sa.Connection, instances: str, batch: list[Any], definitions: dict[tuple[str, int], Definition]
) -> None:
    history, owner = HISTORIES[instances]
    table = _table(history, "id", owner, "version", "from_state", "to_state", "reason", "caused_by", "kind")
    unknown = Definition({}, {}, {})
    readers = {one.id: Reader(definitions.get((one.saga, one.definition_version), unknown)) for one in batch}
    of_batch = table.c[owner].between(batch[0].id, batch[-1].id)
    rows = bind.execute(sa.select(*table.c).where(of_batch).order_by(table.c[owner], table.c.version))
    groups: dict[Facts, list[int]] = {}
    for row in rows:
        reader = readers.get(getattr(row, owner))
        facts = reader.read(row) if reader is not None else Facts()
        if row.kind is None and facts.kind is not None:
            groups.setdefault(facts, []).append(row.id)
    for facts, ids in groups.items():
        for start in range(0, len(ids), ROWS_PER_STATEMENT):
            _write(bind, instances, facts, ids[start : start + ROWS_PER_STATEMENT])


def _write(bind: sa.Connection, instances: str, facts: Facts, ids: list[int]) -> None:
    history, owner = HISTORIES[instances]
    names = ("kind", "step", "message_type", "error_type", "error")
    table = _table(history, "id", owner, *names, "message_id", "caused_by", "trace_id")
    values: dict[str, Any] = {name: getattr(facts, name) for name in names}
    if facts.message_type is not None:
        values["message_id"] = table.c.caused_by
    if facts.kind == "created":
        starts = _table(instances, "id", "traceparent")
        trace = sa.select(sa.func.substr(starts.c.traceparent, 4, 32)).where(starts.c.id == table.c[owner])
        values["trace_id"] = trace.scalar_subquery()
    bind.execute(sa.update(table).where(table.c.id.in_(ids)).values(values))


def _table(name: str, *columns: str) -> sa.TableClause:
    numbers = {"id", "app_id", "instance_id"}
    return sa.table(name, *(sa.column(column, sa.BigInteger() if column in numbers else None) for column in columns))


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in _columns(table):
        op.add_column(table, column)


def _drop(table: str, column: str) -> None:
    if column in _columns(table):
        op.drop_column(table, column)


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
