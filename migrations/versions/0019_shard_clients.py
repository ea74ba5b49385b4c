"""By which node a member of a shard service is reached: a client that is connected to one alone is reached by no other.

Nodes of the former release run beside it: their members are reached by any node, so that it stays empty.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    if "via" not in _columns():
        op.add_column("shard_workers", sa.Column("via", sa.String(100)))


def downgrade() -> None:
    if "via" in _columns():
        op.drop_column("shard_workers", "via")


def _columns() -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns("shard_workers")}
