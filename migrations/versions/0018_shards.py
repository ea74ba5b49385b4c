"""Tables for shard services: their members, their generations, and who has which shards.

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = (
    sa.JSON()
    .with_variant(postgresql.JSONB(), "postgresql")
    .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
)


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    _table(
        "shard_services",
        sa.Column("name", _name(200), nullable=False),
        sa.Column("shard_count", sa.Integer(), nullable=False),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_shard_services"),
    )
    _table("shard_workers", *_workers())
    _table("generations", *_generations())
    _table(
        "shard_assignments",
        sa.Column("service", _name(200), nullable=False),
        sa.Column("first_shard", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("last_shard", sa.Integer(), nullable=False),
        sa.Column("worker_id", _name(200), nullable=False),
        sa.Column("instance", _name(100), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service", "first_shard", name="pk_shard_assignments"),
    )
    _index("shard_workers", "service", "state")
    _index("generations", "live", "leader_id")
    _index("generations", "ended_at")


def downgrade() -> None:
    for name in ("shard_assignments", "generations", "shard_workers", "shard_services"):
        op.drop_table(name, if_exists=True)


def _workers() -> list[Any]:
    return [
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("service", _name(200), nullable=False),
        sa.Column("worker_id", _name(200), nullable=False),
        sa.Column("instance", _name(100), nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("shard_count", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("grace_s", sa.Double(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("answered", sa.Integer(), nullable=False),
        sa.Column("reply_to", sa.String(255)),
        sa.Column("joined_at", TIME, nullable=False),
        sa.Column("last_seen", TIME, nullable=False),
        sa.Column("away_reason", sa.String(10)),
        sa.Column("away_at", TIME),
        sa.Column("revoking", JSON),
        sa.Column("absent", JSON),
        sa.UniqueConstraint("service", "worker_id", "instance", name="uq_shard_workers_service_worker_id_instance"),
    ]


def _generations() -> list[Any]:
    return [
        sa.Column("service", _name(200), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("live", sa.String(10)),
        sa.Column("leader_id", sa.String(100)),
        sa.Column("leader_until", TIME),
        sa.Column("cause", sa.String(20), nullable=False),
        sa.Column("cause_worker", _name(200)),
        sa.Column("began_at", TIME, nullable=False),
        sa.Column("closes_at", TIME, nullable=False),
        sa.Column("activated_at", TIME),
        sa.Column("ended_at", TIME),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("shard_count", sa.Integer(), nullable=False),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.Column("moved", sa.Integer(), nullable=False),
        sa.Column("shares", JSON),
        sa.PrimaryKeyConstraint("service", "number", name="pk_generations"),
        sa.UniqueConstraint("service", "live", name="uq_generations_service_live"),
    ]


def _name(length: int) -> Any:
    """Text that is compared code point by code point."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _table(name: str, *items: Any) -> None:
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
