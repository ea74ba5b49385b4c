"""Job broadcasts: the time that a broadcast has for all of its children, and how many those are.

Nodes of the former release run beside it: they leave the new columns as they are, and no broadcast is made as long as
one of them is alive.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

INDEXED = ("broadcast_end", "state", "wake_at")
INDEX = f"ix_jobs_{'_'.join(INDEXED)}"


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    there = _columns()
    for column in _added():
        if column.name not in there:
            op.add_column("jobs", column)
    if INDEX not in _indexes():
        where = sa.text("broadcast_end IS NOT NULL")  # where the database knows partial indexes
        op.create_index(INDEX, "jobs", list(INDEXED), postgresql_where=where, sqlite_where=where)


def downgrade() -> None:
    if INDEX in _indexes():
        op.drop_index(INDEX, "jobs")
    there = _columns()
    for column in _added():
        if column.name in there:
            op.drop_column("jobs", str(column.name))


def _added() -> list[sa.Column[int]]:
    return [sa.Column("deadline_ms", sa.BigInteger()), sa.Column("children_total", sa.Integer())]


def _indexes() -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("jobs")}


def _columns() -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns("jobs")}
