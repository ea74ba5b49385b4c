"""Outside trials: the installation id, write probes, begun commands, and the order of job logs.

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
INSTANCES = ("apps", "saga_instances")
CAPS = ("log_lines", "log_bytes", "log_cut")
QUEUES_DUE = "ix_jobs_state_channels_queue_wake_at"


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    _installation()
    _write_probes()
    _begun_commands()
    _job_logs()
    _suspects()
    _job_caps()
    _add("workers", sa.Column("lost_places", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    if QUEUES_DUE in _indexes("jobs"):
        op.drop_index(QUEUES_DUE, "jobs")
    _drop("workers", "lost_places")
    for name in reversed(CAPS):
        _drop("jobs", name)
    if "ix_job_logs_job_id_attempt_seq" in _indexes("job_logs"):
        op.drop_index("ix_job_logs_job_id_attempt_seq", "job_logs")
    _drop("job_logs", "attempt")
    for table in INSTANCES:
        for name in ("sent_at", "begun_id"):
            _drop(table, name)
    for table in ("suspects", "command_queues", "write_probes", "installation"):
        op.drop_table(table, if_exists=True)


def _installation() -> None:
    """One row: the id that makes effect keys unique beyond this database, and the last instances from before it."""
    _table(
        "installation",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("installation", sa.String(36), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("last_app_id", sa.BigInteger(), nullable=False),
        sa.Column("last_instance_id", sa.BigInteger(), nullable=False),
        sa.Column("resetting", sa.String(36)),
    )
    op.get_bind().execute(
        sa.text(
            "INSERT INTO installation (id, installation, created_at, last_app_id, last_instance_id)"
            " SELECT 1, :installation, :now, (SELECT COALESCE(MAX(id), 0) FROM apps),"
            " (SELECT COALESCE(MAX(id), 0) FROM saga_instances)"
            " WHERE NOT EXISTS (SELECT 1 FROM installation)"
        ).bindparams(sa.bindparam("now", _now(), TIME)),
        {"installation": str(uuid.uuid4())},
    )


def _now() -> datetime:
    # By our own clock: CURRENT_TIMESTAMP would be told in the time zone of the session.
    now = datetime.now(UTC)
    return now if op.get_bind().dialect.name == "postgresql" else now.replace(tzinfo=None)


def _write_probes() -> None:
    """One row a process, which it changes to prove that the database takes writes."""
    _table(
        "write_probes",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("at", TIME, nullable=False),
    )


def _begun_commands() -> None:
    """Which command of an instance has begun, when one that waits in its queue was sent, and how far each queue is.

    Beside that, how many steps of the queue ran out of time lately.
    """
    for table in INSTANCES:
        _add(table, sa.Column("begun_id", sa.String(36)))
        _add(table, sa.Column("sent_at", TIME))
    _table(
        "command_queues",
        sa.Column("queue", _name(255), primary_key=True),
        sa.Column("begun_sent_at", TIME, nullable=False),
        sa.Column("expired", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("expired_since", TIME),
        sa.Column("wave", sa.Integer()),
        sa.Column("wave_at", TIME),
    )


def _job_logs() -> None:
    """The order of a job's lines: by attempt, and by number within it."""
    _add("job_logs", sa.Column("attempt", sa.Integer(), nullable=False, server_default="1"))
    op.get_bind().execute(
        sa.text(
            "UPDATE job_logs SET attempt ="
            " (SELECT a.attempt FROM job_attempts a WHERE a.history_id = job_logs.history_id)"
            " WHERE EXISTS (SELECT 1 FROM job_attempts a WHERE a.history_id = job_logs.history_id)"
        )
    )
    if "ix_job_logs_job_id_attempt_seq" not in _indexes("job_logs"):
        op.create_index("ix_job_logs_job_id_attempt_seq", "job_logs", ["job_id", "attempt", "seq"])


def _suspects() -> None:
    """Which commands came back from workers that died, how often, and what is done with them."""
    _table(
        "suspects",
        sa.Column("command_id", sa.String(36), primary_key=True),
        sa.Column("queue", sa.String(255), nullable=False),
        sa.Column("saga", sa.String(40), nullable=False),
        sa.Column("instance_id", sa.BigInteger(), nullable=False),
        sa.Column("deaths", sa.Integer(), nullable=False),
        sa.Column("place", sa.String(200), nullable=False),
        sa.Column("noted_at", TIME, nullable=False),
    )
    if "ix_suspects_noted_at" not in _indexes("suspects"):
        op.create_index("ix_suspects_noted_at", "suspects", ["noted_at"])


def _job_caps() -> None:
    """How much of each job's log is kept, and which job of each queue is the next one to be sent."""
    for name in CAPS:
        kind = sa.Integer() if name == "log_cut" else sa.BigInteger()
        _add("jobs", sa.Column(name, kind, nullable=False, server_default="0"))
    if QUEUES_DUE not in _indexes("jobs"):
        op.create_index(QUEUES_DUE, "jobs", ["state", "channels", "queue", "wake_at"])


def _name(length: int) -> sa.types.TypeEngine[str]:
    # Locks are taken in this order by whoever asks, and so by the database.
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _table(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(
        name,
        *columns,
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in _columns(table):
        op.add_column(table, column)


def _drop(table: str, column: str) -> None:
    if column in _columns(table):
        op.drop_column(table, column)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
