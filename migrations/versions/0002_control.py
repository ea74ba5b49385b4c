"""What does control add: what went wrong with an instance, who stepped in, dead letters, and limits of all nodes?

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
BODY = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANCES = ("apps", "saga_instances")
STUCK = "blocker IS NOT NULL OR wake_reason IN ('unsent', 'broker_down', 'no_consumer')"


def upgrade() -> None:
    for table in INSTANCES:
        # Rows that are there already are in their first try.
        _add(table, sa.Column("tries", sa.Integer(), nullable=False, server_default="1"))
        _add(table, sa.Column("deadline_at", TIME))
        _add(table, sa.Column("progress", JSON))
    _audit()
    _dead_letters()
    _throttles()
    if op.get_bind().dialect.name != "mysql":
        few: dict[str, Any] = {"postgresql_where": sa.text(STUCK), "sqlite_where": sa.text(STUCK)}
        op.create_index("ix_apps_stuck", "apps", ["created_at", "id"], **few)
        op.create_index("ix_saga_instances_stuck", "saga_instances", ["saga", "created_at", "id"], **few)


def downgrade() -> None:
    for table in ("throttles", "dead_letters", "audit"):
        op.drop_table(table, if_exists=True)
    for table in INSTANCES:
        if op.get_bind().dialect.name != "mysql":
            op.drop_index(f"ix_{table}_stuck", table)
        for column in ("tries", "deadline_at", "progress"):
            _drop(table, column)


def _audit() -> None:
    _table(
        "audit",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("actor", _name(200), nullable=False),
        sa.Column("verb", sa.String(40), nullable=False),
        sa.Column("saga", sa.String(40)),
        sa.Column("instance_id", sa.BigInteger()),
        sa.Column("from_version", sa.BigInteger()),
        sa.Column("to_version", sa.BigInteger()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", JSON),
    )
    _index("audit", "saga", "instance_id", "id")


def _dead_letters() -> None:
    _table(
        "dead_letters",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("queue", _name(255), nullable=False),
        sa.Column("exchange", _name(255), nullable=False),
        sa.Column("routing_key", _name(255), nullable=False),
        sa.Column("type", _name(255), nullable=False),
        sa.Column("saga", _name(40)),
        sa.Column("instance_id", sa.BigInteger()),
        sa.Column("message_id", _name(255)),
        sa.Column("correlation_id", _name(255)),
        sa.Column("reason", _name(500), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("deliveries", sa.BigInteger(), nullable=False),
        sa.Column("body", BODY),
        sa.Column("body_size", sa.BigInteger(), nullable=False),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        sa.Column("headers", JSON, nullable=False),
        sa.Column("died_at", TIME, nullable=False),
        sa.Column("recorded_at", TIME, nullable=False),
        sa.Column("redriven_at", TIME),
        sa.Column("redriven", sa.Integer(), nullable=False),
        sa.Column("edited_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_dead_letters"),
    )
    _index("dead_letters", "died_at", "id")
    _index("dead_letters", "redriven_at", "died_at", "id")
    _index("dead_letters", "queue", "died_at", "id")
    _index("dead_letters", "saga", "instance_id")


def _throttles() -> None:
    _table(
        "throttles",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("tokens_micro", sa.BigInteger(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_throttles"),
    )


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in _columns(table):
        op.add_column(table, column)


def _drop(table: str, column: str) -> None:
    if column in _columns(table):
        op.drop_column(table, column)


def _name(length: int) -> Any:
    """Text that is compared code point by code point."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


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


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
