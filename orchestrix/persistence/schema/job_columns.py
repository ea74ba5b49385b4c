"""Job columns: a job, as a client or a schedule has asked for it and as it is now, and each of its attempts."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, String, Text, UniqueConstraint, text
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema.column_types import Json, Name, UtcTime


def jobs_columns() -> list[SchemaItem]:
    """One row a job."""
    return [*_job(), *_executor(), *_keys()]


def _job() -> list[SchemaItem]:
    return [
        Column("id", String(36), nullable=False),
        Column("queue", Name(100)),
        Column("executor_group", Name(200)),
        Column("handler", Name(200), nullable=False),
        Column("payload", Json),
        Column("routing", String(40)),
        Column("state", String(20), nullable=False),
        Column("ownership", String(20)),
        Column("owner", String(100)),
        Column("owner_epoch", BigInteger, nullable=False),
        Column("channels", Integer, nullable=False),
        Column("history_id", String(36)),
        Column("attempt", Integer, nullable=False),
        Column("tries", Integer, nullable=False),
        Column("retries", Integer, nullable=False),
        Column("timeout_ms", BigInteger),
        Column("created_by", Name(200), nullable=False),
        Column("correlation_id", String(128), nullable=False),
        Column("created_at", UtcTime, nullable=False),
        Column("updated_at", UtcTime, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("wake_at", UtcTime),
        Column("dispatched_at", UtcTime),
        Column("started_at", UtcTime),
        Column("finished_at", UtcTime),
        Column("cancel_reason", Text),
        Column("worker_id", Name(200)),
        Column("worker_beat_at", UtcTime),
        Column("progress", Json),
        Column("result", Json),
        Column("error", Json),
        Column("seq", BigInteger, nullable=False),
        Column("last_log_seq", BigInteger),
        Column("handoff_reason", String(20)),
        Column("handoff_at", UtcTime),
        Column("handoff_tries", Integer, nullable=False),
        Column("taken_at", UtcTime),
        Column("schedule_id", String(36)),
        Column("due_at", UtcTime),
        Column("saga", String(40)),
        Column("instance_id", BigInteger),
        Column("step", String(100)),
        Column("traceparent", String(64)),
        Column("tracestate", String(512)),
        Column("trace_head", String(64)),
        Column("log_lines", BigInteger, nullable=False, server_default="0"),
        Column("log_bytes", BigInteger, nullable=False, server_default="0"),
        Column("log_cut", Integer, nullable=False, server_default="0"),
    ]


def _executor() -> list[SchemaItem]:
    """What jobs for a group of executors have besides."""
    return [
        Column("routing_key", Name(200)),
        Column("routing_address", Name(255)),
        Column("broadcast_end", String(3)),
        Column("address", Name(255)),
        Column("called_at", UtcTime),
        Column("parent_id", String(36)),
        Column("shard_index", Integer),
        Column("shard_total", Integer),
        Column("deadline_ms", BigInteger),
        Column("children_total", Integer),
        Column("children_left", Integer),
        Column("children_failed", Integer),
    ]


def _keys() -> list[SchemaItem]:
    return [
        PrimaryKeyConstraint("id"),
        UniqueConstraint("schedule_id", "due_at"),
        Index(None, "schedule_id", "state"),
        Index(None, "state", "channels", "wake_at"),
        Index(None, "state", "channels", "queue", "wake_at"),
        Index(None, "state", "channels", "executor_group", "wake_at"),
        Index(None, "channels", "owner"),
        Index(None, "history_id"),
        Index(None, "finished_at"),
        Index(None, "created_at", "id"),
        Index(None, "state", "created_at", "id"),
        Index(None, "queue", "created_at", "id"),
        Index(None, "executor_group", "created_at", "id"),
        Index(None, "parent_id", "shard_index"),
        # Its condition keeps all other jobs out, where the database knows partial indexes.
        Index(
            None,
            "broadcast_end",
            "state",
            "wake_at",
            postgresql_where=text("broadcast_end IS NOT NULL"),
            sqlite_where=text("broadcast_end IS NOT NULL"),
        ),
    ]


def job_attempts_columns() -> list[SchemaItem]:
    """One row an attempt."""
    return [
        Column("history_id", String(36), nullable=False),
        Column("job_id", String(36), nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("worker_id", Name(200)),
        Column("state", String(20), nullable=False),
        Column("dispatched_at", UtcTime, nullable=False),
        Column("started_at", UtcTime),
        Column("finished_at", UtcTime),
        Column("error", Json),
        Column("last_log_seq", BigInteger),
        Column("address", Name(255)),
        Column("called_at", UtcTime),
        PrimaryKeyConstraint("history_id"),
        Index(None, "job_id", "attempt"),
    ]
