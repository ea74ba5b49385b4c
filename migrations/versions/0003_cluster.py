"""What does the cluster add: who leads and who led, which nodes there are, and which workers?

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
JSON = (
    sa.JSON()
    .with_variant(postgresql.JSONB(), "postgresql")
    .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
)


def upgrade() -> None:
    _leases()
    _handovers()
    _nodes()
    _workers()


def downgrade() -> None:
    for table in ("workers", "nodes", "handovers", "leases"):
        op.drop_table(table, if_exists=True)


def _leases() -> None:
    _table(
        "leases",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(100), nullable=False),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("gained_at", TIME, nullable=False),
        sa.Column("resigned_at", TIME),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def _handovers() -> None:
    _table(
        "handovers",
        sa.Column("term", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("from_holder", sa.String(100)),
        sa.Column("to_holder", sa.String(100), nullable=False),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("began_at", TIME, nullable=False),
        sa.Column("gained_at", TIME, nullable=False),
        sa.Column("ended_at", TIME),
        sa.PrimaryKeyConstraint("term", name="pk_handovers"),
    )


def _nodes() -> None:
    _table(
        "nodes",
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("roles", sa.String(100), nullable=False),
        sa.Column("job_count", sa.Integer(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("beat_at", TIME, nullable=False),
        sa.Column("ended_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )
    _index("nodes", "state", "beat_at")


def _workers() -> None:
    _table(
        "workers",
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("queues", JSON, nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("beat_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    _index("workers", "beat_at")


def _table(name: str, *items: sa.schema.SchemaItem) -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    op.create_table(
        name,
        *items,
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


def _index(table: str, *columns: str) -> None:
    name = f"ix_{table}_{'_'.join(columns)}"
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))
