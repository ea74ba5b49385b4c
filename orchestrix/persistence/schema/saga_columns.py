"""Saga columns: the columns and constraints that the tables of all sagas have in common."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Text, UniqueConstraint, text
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema.column_types import BigId, Json, Name, UtcTime

NEVER_STUCK: Final = (
    "(state IN ('COMPLETED', 'FAILED') AND wake_at IS NULL AND wake_reason IS NULL AND blocker IS NULL)"
    " OR (state NOT IN ('COMPLETED', 'FAILED') AND ("
    "(wake_at IS NOT NULL AND wake_reason IS NOT NULL AND blocker IS NULL)"
    " OR (wake_at IS NULL AND wake_reason IS NULL AND blocker IS NOT NULL)))"
)

STUCK: Final = "blocker IS NOT NULL OR wake_reason IN ('unsent', 'broker_down', 'no_consumer')"
"""That a live saga waits for more than its own worker. The index on it is used for exactly these words."""

HINDERED: Final = "hindered_by IS NOT NULL"


def instance_columns() -> list[Column[Any]]:
    """What every instance has, whichever saga it is of."""
    return [
        Column("created_by", Name(200), nullable=False),
        Column("state", String(40), nullable=False),
        Column("created_at", UtcTime, nullable=False),
        Column("updated_at", UtcTime, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("correlation_id", String(128), nullable=False),
        Column("command_id", String(36)),
        Column("attempt", Integer, nullable=False),
        Column("wake_at", UtcTime),
        Column("wake_reason", String(20)),
        Column("wait_ms", BigInteger, nullable=False),
        Column("blocker", String(20)),
        Column("data", Json, nullable=False),
        Column("definition_version", Integer, nullable=False),
        Column("traceparent", String(64)),
        Column("tracestate", String(512)),
        Column("tries", Integer, nullable=False, server_default="1"),
        Column("deadline_at", UtcTime),
        Column("progress", Json),
        Column("begun_id", String(36)),
        Column("sent_at", UtcTime),
        Column("hindered_by", String(20)),
        Column("begun_at", UtcTime),
        Column("trace_head", String(64)),
    ]


def stuck(table: str, *columns: str) -> Index:
    """The few that are stuck, in the order of a list. MySQL has no such indexes: see `instance_pages`."""
    few = text(STUCK)
    return Index(f"ix_{table}_stuck", *columns, postgresql_where=few, sqlite_where=few, info={"not_on": "mysql"})


def blockers(table: str) -> Index:
    """The few with a value in `hindered_by`. MySQL has no such indexes."""
    few = text(HINDERED)
    return Index(f"ix_{table}_hindered", "id", postgresql_where=few, sqlite_where=few, info={"not_on": "mysql"})


def history_columns(owner: str, table: str) -> list[SchemaItem]:
    """The history of the instances in `table`."""
    return [
        Column("id", BigId, primary_key=True, autoincrement=True),
        Column(owner, BigId, ForeignKey(f"{table}.id"), nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("from_state", String(40)),
        Column("to_state", String(40), nullable=False),
        Column("reason", Text, nullable=False),
        Column("correlation_id", String(128), nullable=False),
        Column("actor", Name(200), nullable=False),
        Column("caused_by", String(255)),
        Column("command_id", String(36)),
        Column("at", UtcTime, nullable=False),
        Column("kind", String(20)),
        Column("step", String(100)),
        Column("message_type", String(110)),
        Column("message_id", String(255)),
        Column("error_type", String(200)),
        Column("error", Text),
        Column("trace_id", String(32)),
        Column("sent_at", UtcTime),
        Column("begun_at", UtcTime),
        UniqueConstraint(owner, "version"),
    ]


def suspect_columns() -> tuple[SchemaItem, ...]:
    """Of the commands that came back from workers that died."""
    return (
        Column("command_id", String(36), primary_key=True),
        Column("queue", String(255), nullable=False),
        Column("saga", String(40), nullable=False),
        Column("instance_id", BigInteger, nullable=False),
        Column("deaths", Integer, nullable=False),
        Column("place", String(200), nullable=False),
        Column("noted_at", UtcTime, nullable=False),
        Index(None, "noted_at"),
    )
