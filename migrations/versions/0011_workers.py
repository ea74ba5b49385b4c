"""Columns for who is there: host and release of nodes and workers, and the command queues, jobs and load of workers.

The types are written out here and not taken from the code, which goes on while this page stays. Nodes and workers of
the former release run beside it: all columns may be empty.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

JSON = (
    sa.JSON()
    .with_variant(postgresql.JSONB(), "postgresql")
    .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
)


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    for table, columns in _added().items():
        present = _columns(table)
        for column in columns:
            if column.name not in present:
                op.add_column(table, column)


def downgrade() -> None:
    for table, columns in _added().items():
        present = _columns(table)
        for column in reversed(columns):
            if column.name in present:
                op.drop_column(table, column.name)


def _added() -> dict[str, list[sa.Column[Any]]]:
    return {
        "nodes": [sa.Column("host", sa.String(255)), sa.Column("version", sa.String(40))],
        "workers": [
            sa.Column("host", sa.String(255)),
            sa.Column("version", sa.String(40)),
            sa.Column("command_queues", JSON),
            sa.Column("commands", sa.Integer()),
            sa.Column("handlers", JSON),
        ],
    }


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
