"""What does a job add that belongs to a trace: the context of whoever wanted it?

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    _add(sa.Column("traceparent", sa.String(64)))
    _add(sa.Column("tracestate", sa.String(512)))


def downgrade() -> None:
    for name in ("tracestate", "traceparent"):
        if name in _columns():
            op.drop_column("jobs", name)


def _add(column: sa.Column[Any]) -> None:
    if column.name not in _columns():
        op.add_column("jobs", column)


def _columns() -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns("jobs")}
