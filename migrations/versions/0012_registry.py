"""Tables for executors: who is registered, who was removed lately, and where nodes listen; a turn for each group.

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT, LONGER = (kind(charset="utf8mb4", collation="utf8mb4_bin") for kind in (mysql.TEXT, mysql.MEDIUMTEXT))


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    _table(
        "job_registry",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        *_executor(),
        sa.Column("update_time", TIME, nullable=False),
        sa.Column("instance", _name(100)),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("load", sa.Double()),
        sa.Column("first_seen", TIME, nullable=False),
        sa.Column("state_since", TIME, nullable=False),
        sa.Column("drained_at", TIME),
        sa.UniqueConstraint("registry_group", "registry_key", "registry_value", name="idx_g_k_v"),
    )
    _table(
        "registry_removed",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        *_executor(),
        sa.Column("instance", _name(100)),
        sa.Column("reason", sa.String(10), nullable=False),
        sa.Column("last_seen", TIME),
        sa.Column("drained_at", TIME),
        sa.Column("removed_at", TIME, nullable=False),
    )
    _table(
        "node_listeners",
        sa.Column("node", sa.String(100), nullable=False),
        sa.Column("ip", sa.String(45), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("node", "ip", "port", name="pk_node_listeners"),
    )
    _index("job_registry", "update_time")
    _index("registry_removed", "registry_key", "removed_at")
    _index("registry_removed", "removed_at")
    if "turn" not in _columns("job_group"):
        op.add_column("job_group", sa.Column("turn", sa.BigInteger(), nullable=False, server_default="0"))
    if op.get_bind().dialect.name == "mysql":  # a thousand long addresses are more than 64 KiB
        op.alter_column("job_group", "address_list", existing_type=TEXT, type_=LONGER, nullable=False)


def downgrade() -> None:
    if op.get_bind().dialect.name == "mysql":
        op.alter_column("job_group", "address_list", existing_type=LONGER, type_=TEXT, nullable=False)
    if "turn" in _columns("job_group"):
        op.drop_column("job_group", "turn")
    for name in ("node_listeners", "registry_removed", "job_registry"):
        op.drop_table(name, if_exists=True)


def _executor() -> list[sa.Column[Any]]:
    return [
        sa.Column("registry_group", sa.String(20), nullable=False),
        sa.Column("registry_key", _name(200), nullable=False),
        sa.Column("registry_value", _name(255), nullable=False),
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


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
