"""Traces: the span from which the next part of a saga or a job follows.

Nodes of the former release run beside it: they leave the columns as they are, and what they send follows from the root
of the trace. The columns of a row that was written before are empty, which means the same.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TABLES = ("apps", "saga_instances", "jobs")


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    for table in TABLES:
        if "trace_head" not in _columns(table):
            op.add_column(table, sa.Column("trace_head", sa.String(64)))


def downgrade() -> None:
    for table in TABLES:
        if "trace_head" in _columns(table):
            op.drop_column(table, "trace_head")


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
