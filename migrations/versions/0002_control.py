"""What does control add: tries, deadlines and progress of instances?

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
JSON = (
    sa.JSON()
    .with_variant(postgresql.JSONB(), "postgresql")
    .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
)
INSTANCES = ("apps", "saga_instances")


def upgrade() -> None:
    for table in INSTANCES:
        # Rows that are there already are in their first try.
        _add(table, sa.Column("tries", sa.Integer(), nullable=False, server_default="1"))
        _add(table, sa.Column("deadline_at", TIME))
        _add(table, sa.Column("progress", JSON))


def downgrade() -> None:
    for table in INSTANCES:
        for column in ("tries", "deadline_at", "progress"):
            _drop(table, column)


def _add(table: str, column: sa.Column[Any]) -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    if column.name not in _columns(table):
        op.add_column(table, column)


def _drop(table: str, column: str) -> None:
    if column in _columns(table):
        op.drop_column(table, column)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
