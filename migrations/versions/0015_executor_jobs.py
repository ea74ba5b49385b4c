"""Executor jobs: jobs for a group of executors, which have no queue; where they were called; what a node can judge.

Nodes of the former release run beside it: they leave the new columns as they are. They cannot judge a row without a
queue, and have the feature level 0; as long as one of them is alive, no such row is made.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
INDEXES = (
    ("state", "channels", "executor_group", "wake_at"),
    ("executor_group", "created_at", "id"),
    ("parent_id", "shard_index"),
)


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    _queue(nullable=True)
    for table, columns in _added().items():
        there = _columns(table)
        for column in columns:
            if column.name not in there:
                op.add_column(table, column)
    for indexed in INDEXES:
        if _index(indexed) not in _indexes():
            op.create_index(_index(indexed), "jobs", list(indexed))


def downgrade() -> None:
    for indexed in INDEXES:
        if _index(indexed) in _indexes():
            op.drop_index(_index(indexed), "jobs")
    for table, columns in _added().items():
        there = _columns(table)
        for column in columns:
            if column.name in there:
                op.drop_column(table, str(column.name))
    op.execute(sa.text("UPDATE jobs SET queue = '' WHERE queue IS NULL"))
    _queue(nullable=False)


def _added() -> dict[str, list[sa.Column[Any]]]:
    called = [sa.Column("address", _name(255)), sa.Column("called_at", TIME)]
    return {
        "jobs": [
            sa.Column("routing_key", _name(200)),
            sa.Column("routing_address", _name(255)),
            sa.Column("broadcast_end", sa.String(3)),
            *called,
            sa.Column("parent_id", sa.String(36)),
            sa.Column("shard_index", sa.Integer()),
            sa.Column("shard_total", sa.Integer()),
            sa.Column("children_left", sa.Integer()),
            sa.Column("children_failed", sa.Integer()),
        ],
        "job_attempts": [sa.Column("address", _name(255)), sa.Column("called_at", TIME)],
        "nodes": [sa.Column("feature_level", sa.Integer(), nullable=False, server_default="0")],
        "installation": [sa.Column("report_key", sa.String(64))],
    }


def _queue(*, nullable: bool) -> None:
    """SQLite has no statement for it: the table is made anew there."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("queue", existing_type=_name(100), nullable=nullable)


def _name(length: int) -> Any:
    """Text that is compared code point by code point."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}


def _index(columns: tuple[str, ...]) -> str:
    return f"ix_jobs_{'_'.join(columns)}"


def _indexes() -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("jobs")}
