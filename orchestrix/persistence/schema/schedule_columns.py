"""Schedule columns: what people set of a schedule, and what became of it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, String, Text, UniqueConstraint
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema.column_types import Json, Name, UtcTime


def schedules_columns() -> list[SchemaItem]:
    """One row a schedule."""
    return [
        Column("id", String(36), nullable=False),
        Column("name", Name(100), nullable=False),
        Column("cron", String(200)),
        Column("interval_ms", BigInteger),
        Column("zone", String(100), nullable=False),
        Column("starts_at", UtcTime),
        Column("ends_at", UtcTime),
        Column("overlap", String(20), nullable=False),
        Column("misfire", String(20), nullable=False),
        Column("catch_up", Integer, nullable=False),
        Column("missed_after_ms", BigInteger, nullable=False),
        Column("jitter_ms", BigInteger, nullable=False),
        Column("job", Json, nullable=False),
        Column("created_by", Name(200), nullable=False),
        Column("created_at", UtcTime, nullable=False),
        Column("updated_at", UtcTime, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("paused_at", UtcTime),
        Column("due_at", UtcTime),
        Column("next_at", UtcTime),
        Column("trouble", Text),
        Column("last_due_at", UtcTime),
        Column("last_outcome", String(20)),
        Column("last_job_id", String(36)),
        Column("last_misfire", Json),
        Column("fired", BigInteger, nullable=False),
        Column("skipped", BigInteger, nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("name"),
        Index(None, "next_at"),
    ]
