"""Definition columns: stored definitions of sagas, and the events that are held for want of one."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, String, UniqueConstraint
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema.column_types import BigId, Body, Json, Name, UtcTime


def saga_definitions_columns() -> list[SchemaItem]:
    """One row a version of a saga."""
    return [
        Column("saga", String(40), nullable=False),
        Column("version", Integer, nullable=False, autoincrement=False),
        Column("form", Integer, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("body", Json, nullable=False),
        Column("data_schema", Json),
        Column("created_at", UtcTime, nullable=False),
        Column("updated_at", UtcTime, nullable=False),
        PrimaryKeyConstraint("saga", "version"),
    ]


def held_events_columns() -> list[SchemaItem]:
    """One row an event."""
    return [
        Column("id", BigId, primary_key=True, autoincrement=True),
        Column("message_id", Name(255), nullable=False),
        Column("saga", String(40), nullable=False),
        Column("instance_id", BigInteger, nullable=False),
        Column("queue", Name(255), nullable=False),
        Column("body", Body, nullable=False),
        Column("headers", Json, nullable=False),
        Column("reason", String(110), nullable=False),
        Column("held_at", UtcTime, nullable=False),
        UniqueConstraint("message_id"),
        Index(None, "saga", "instance_id", "id"),
    ]
