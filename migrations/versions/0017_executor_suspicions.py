"""Executor suspicions: which node got no answer from which executor; and since when a process has its address.

Nodes of the former release run beside it: they route to suspects as before, and do not note when a process registers.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0017"
down_revision = "0015"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")


def upgrade() -> None:
    op.create_table(
        "executor_suspicions",
        sa.Column("registry_key", _name(200), nullable=False),
        sa.Column("registry_value", _name(255), nullable=False),
        sa.Column("node", sa.String(100), nullable=False),
        sa.Column("since", TIME, nullable=False),
        sa.Column("probed_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("registry_key", "registry_value", "node", name="pk_executor_suspicions"),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    if "instance_since" not in _columns():
        op.add_column("job_registry", sa.Column("instance_since", TIME))


def downgrade() -> None:
    if "instance_since" in _columns():
        op.drop_column("job_registry", "instance_since")
    op.drop_table("executor_suspicions", if_exists=True)


def _columns() -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns("job_registry")}


def _name(length: int) -> Any:
    """Text that is compared code point by code point."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
