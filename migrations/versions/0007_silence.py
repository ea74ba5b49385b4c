"""What tells how long somebody has been silent: since when an owner has its job, and when a worker spoke by its clock?

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
ADDED = {"jobs": "taken_at", "workers": "said_at"}


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    for table, name in ADDED.items():
        if name not in _columns(table):
            op.add_column(table, sa.Column(name, TIME))


def downgrade() -> None:
    for table, name in ADDED.items():
        if name in _columns(table):
            op.drop_column(table, name)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
