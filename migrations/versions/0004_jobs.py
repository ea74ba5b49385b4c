"""What do jobs add: the jobs, their attempts, and what those log?

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
JSON = (
    sa.JSON()
    .with_variant(postgresql.JSONB(), "postgresql")
    .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
)


def upgrade() -> None:
    _jobs()
    _attempts()
    _logs()


def downgrade() -> None:
    for table in ("job_logs", "job_attempts", "jobs"):
        op.drop_table(table, if_exists=True)


def _jobs() -> None:
    _table(
        "jobs",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("queue", _name(100), nullable=False),
        sa.Column("executor_group", _name(200)),
        sa.Column("handler", _name(200), nullable=False),
        sa.Column("payload", JSON),
        sa.Column("routing", sa.String(40)),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("ownership", sa.String(20)),
        sa.Column("owner", sa.String(100)),
        sa.Column("owner_epoch", sa.BigInteger(), nullable=False),
        sa.Column("channels", sa.Integer(), nullable=False),
        sa.Column("history_id", sa.String(36)),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("timeout_ms", sa.BigInteger()),
        sa.Column("created_by", _name(200), nullable=False),
        sa.Column("correlation_id", sa.String(128), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("wake_at", TIME),
        sa.Column("dispatched_at", TIME),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("cancel_reason", sa.Text()),
        sa.Column("worker_id", _name(200)),
        sa.Column("worker_beat_at", TIME),
        sa.Column("progress", JSON),
        sa.Column("result", JSON),
        sa.Column("error", JSON),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("last_log_seq", sa.BigInteger()),
        sa.Column("handoff_reason", sa.String(20)),
        sa.Column("handoff_at", TIME),
        sa.Column("handoff_tries", sa.Integer(), nullable=False),
        sa.Column("schedule_id", sa.String(36)),
        sa.Column("due_at", TIME),
        sa.Column("saga", sa.String(40)),
        sa.Column("instance_id", sa.BigInteger()),
        sa.Column("step", sa.String(100)),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("schedule_id", "due_at", name="uq_jobs_schedule_id_due_at"),
    )
    _index("jobs", "state", "channels", "wake_at")
    _index("jobs", "channels", "owner")
    _index("jobs", "history_id")
    _index("jobs", "finished_at")
    _index("jobs", "created_at", "id")
    _index("jobs", "state", "created_at", "id")
    _index("jobs", "queue", "created_at", "id")


def _attempts() -> None:
    _table(
        "job_attempts",
        sa.Column("history_id", sa.String(36), nullable=False),
        sa.Column("job_id", sa.String(36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", _name(200)),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("dispatched_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("error", JSON),
        sa.Column("last_log_seq", sa.BigInteger()),
        sa.PrimaryKeyConstraint("history_id", name="pk_job_attempts"),
    )
    _index("job_attempts", "job_id", "attempt")


def _logs() -> None:
    _table(
        "job_logs",
        sa.Column("history_id", sa.String(36), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("job_id", sa.String(36), nullable=False),
        sa.Column("worker_id", _name(200)),
        sa.Column("level", _name(20), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("history_id", "seq", name="pk_job_logs"),
    )
    _index("job_logs", "job_id", "history_id", "seq")


def _name(length: int) -> Any:
    """Text that is compared code point by code point."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _table(name: str, *items: sa.schema.SchemaItem) -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    op.create_table(
        name,
        *items,
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


def _index(table: str, *columns: str) -> None:
    name = f"ix_{table}_{'_'.join(columns)}"
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))
