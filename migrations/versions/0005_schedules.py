"""What do schedules add: the schedules, and a quick look at which runs of one have not ended?

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
JSON = (
    sa.JSON()
    .with_variant(postgresql.JSONB(), "postgresql")
    .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
)


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    op.create_table(
        "schedules",
        *_what_people_say(),
        *_what_became_of_it(),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
        sa.UniqueConstraint("name", name="uq_schedules_name"),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
    _index("schedules", "next_at")
    _index("jobs", "schedule_id", "state")


def downgrade() -> None:
    op.drop_table("schedules", if_exists=True)
    if "ix_jobs_schedule_id_state" in _indexes("jobs"):
        op.drop_index("ix_jobs_schedule_id_state", "jobs")


def _what_people_say() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", _name(100), nullable=False),
        sa.Column("cron", sa.String(200)),
        sa.Column("interval_ms", sa.BigInteger()),
        sa.Column("zone", sa.String(100), nullable=False),
        sa.Column("starts_at", TIME),
        sa.Column("ends_at", TIME),
        sa.Column("overlap", sa.String(20), nullable=False),
        sa.Column("misfire", sa.String(20), nullable=False),
        sa.Column("catch_up", sa.Integer(), nullable=False),
        sa.Column("missed_after_ms", sa.BigInteger(), nullable=False),
        sa.Column("jitter_ms", sa.BigInteger(), nullable=False),
        sa.Column("job", JSON, nullable=False),
        sa.Column("created_by", _name(200), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
    ]


def _what_became_of_it() -> list[sa.Column[Any]]:
    return [
        sa.Column("paused_at", TIME),
        sa.Column("due_at", TIME),
        sa.Column("next_at", TIME),
        sa.Column("trouble", sa.Text()),
        sa.Column("last_due_at", TIME),
        sa.Column("last_outcome", sa.String(20)),
        sa.Column("last_job_id", sa.String(36)),
        sa.Column("last_misfire", JSON),
        sa.Column("fired", sa.BigInteger(), nullable=False),
        sa.Column("skipped", sa.BigInteger(), nullable=False),
    ]


def _name(length: int) -> Any:
    """Text that is compared code point by code point."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _index(table: str, *columns: str) -> None:
    name = f"ix_{table}_{'_'.join(columns)}"
    if name not in _indexes(table):
        op.create_index(name, table, list(columns))


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
