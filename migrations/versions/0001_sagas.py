"""What does the first schema hold: apps, sagas of users, their history, the outbox, and what keeps them right?

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0001"
down_revision = None
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

NEVER_STUCK = (
    "(state IN ('COMPLETED', 'FAILED') AND wake_at IS NULL AND wake_reason IS NULL AND blocker IS NULL)"
    " OR (state NOT IN ('COMPLETED', 'FAILED') AND ("
    "(wake_at IS NOT NULL AND wake_reason IS NOT NULL AND blocker IS NULL)"
    " OR (wake_at IS NULL AND wake_reason IS NULL AND blocker IS NOT NULL)))"
)


def upgrade() -> None:
    _instances("apps", sa.Column("app_name", _name(200), nullable=False), unique=["app_name"])
    _history("app_state_history", "app_id", "apps")
    _instances(
        "saga_instances",
        sa.Column("saga", sa.String(40), nullable=False),
        sa.Column("key", _name(200), nullable=False),
        unique=["saga", "key"],
    )
    _history("saga_history", "instance_id", "saga_instances")
    _notes()
    _outbox()
    _broker_incarnation()
    _idempotency_keys()
    _job_group()


def downgrade() -> None:
    for table in (
        "job_group",
        "idempotency_keys",
        "broker_incarnation",
        "outbox",
        "saga_notes",
        "saga_history",
        "saga_instances",
        "app_state_history",
        "apps",
    ):
        op.drop_table(table, if_exists=True)


def _instances(table: str, *names: sa.Column[Any], unique: list[str]) -> None:
    _table(
        table,
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        *names,
        sa.Column("created_by", _name(200), nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("correlation_id", sa.String(128), nullable=False),
        sa.Column("command_id", sa.String(36)),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("wake_at", TIME),
        sa.Column("wake_reason", sa.String(20)),
        sa.Column("wait_ms", sa.BigInteger(), nullable=False),
        sa.Column("blocker", sa.String(20)),
        sa.Column("data", JSON, nullable=False),
        sa.Column("definition_version", sa.Integer(), nullable=False),
        sa.Column("traceparent", sa.String(64)),
        sa.Column("tracestate", sa.String(512)),
        sa.UniqueConstraint(*unique, name=f"uq_{table}_{'_'.join(unique)}", postgresql_include=["created_at", "id"]),
        sa.CheckConstraint(NEVER_STUCK, name=op.f(f"ck_{table}_never_stuck")),
    )
    saga = [name for name in unique if name == "saga"]
    _index(table, *saga, "created_at", "id", unique[-1])
    _index(table, *saga, "state", "created_at", "id")
    _index(table, *saga, "created_by", "created_at", "id")
    _index(table, *saga, "created_by", "state", "created_at", "id")
    _index(table, "wake_at")


def _history(table: str, owner: str, instances: str) -> None:
    _table(
        table,
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column(owner, BIG_ID, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("from_state", sa.String(40)),
        sa.Column("to_state", sa.String(40), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.String(128), nullable=False),
        sa.Column("actor", _name(200), nullable=False),
        sa.Column("caused_by", sa.String(255)),
        sa.Column("command_id", sa.String(36)),
        sa.Column("at", TIME, nullable=False),
        sa.ForeignKeyConstraint([owner], [f"{instances}.id"], name=f"fk_{table}_{owner}"),
        sa.UniqueConstraint(owner, "version", name=f"uq_{table}_{owner}_version"),
    )


def _notes() -> None:
    key = ("saga", "instance_id", "kind", "type", "reason")
    _table(
        "saga_notes",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("saga", sa.String(40), nullable=False),
        sa.Column("instance_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("type", sa.String(110), nullable=False),
        sa.Column("reason", sa.String(110), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_at", TIME, nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        sa.UniqueConstraint(*key, name=f"uq_saga_notes_{'_'.join(key)}"),
    )


def _outbox() -> None:
    _table(
        "outbox",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("saga", sa.String(40), nullable=False),
        sa.Column("instance_id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("exchange", sa.String(255), nullable=False),
        sa.Column("routing_key", sa.String(255), nullable=False),
        sa.Column("type", sa.String(110), nullable=False),
        sa.Column("correlation_id", sa.String(128), nullable=False),
        sa.Column("body", BODY, nullable=False),
        sa.Column("traceparent", sa.String(64)),
        sa.Column("tracestate", sa.String(512)),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("topology", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("claimed_by", sa.String(100)),
        sa.Column("claimed_until", TIME, nullable=False),
        sa.Column("parked_reason", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    _index("outbox", "saga", "instance_id", "version", "n")
    _index("outbox", "claimed_until")


def _broker_incarnation() -> None:
    _table(
        "broker_incarnation",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("incarnation", sa.String(36), nullable=False),
        sa.Column("changed_at", TIME, nullable=False),
    )


def _idempotency_keys() -> None:
    _table(
        "idempotency_keys",
        sa.Column("scope", sa.String(64), nullable=False),
        sa.Column("key", _name(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", JSON, nullable=False),
        sa.Column("body", BODY, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name="pk_idempotency_keys"),
    )
    _index("idempotency_keys", "created_at")


def _job_group() -> None:
    _table(
        "job_group",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("app_name", _name(200), nullable=False),
        sa.Column("address_type", sa.Integer(), nullable=False),
        sa.Column("address_list", sa.Text(), nullable=False),
        sa.Column("marker", sa.String(300)),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.UniqueConstraint("app_name", name="uq_job_group_app_name"),
    )


def _name(length: int) -> Any:
    """Text that is compared code point by code point."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _table(name: str, *items: sa.schema.SchemaItem) -> None:
    # Tables and indexes that are there already stay: MySQL cannot undo a migration that was cut off half-way.
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
