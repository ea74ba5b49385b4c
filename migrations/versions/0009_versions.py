"""Versions of sagas: their definitions, and events that this release's nodes could not judge.

The types are written out here and not taken from the code, which goes on while this page stays.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0009"
down_revision = "0008"
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
TEXT = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    op.create_table(
        "saga_definitions",
        sa.Column("saga", sa.String(40), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("form", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.Column("data_schema", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        if_not_exists=True,
        **TEXT,
    )
    op.create_table(
        "held_events",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("message_id", _name(255), nullable=False),
        sa.Column("saga", sa.String(40), nullable=False),
        sa.Column("instance_id", sa.BigInteger(), nullable=False),
        sa.Column("queue", _name(255), nullable=False),
        sa.Column("body", BODY, nullable=False),
        sa.Column("headers", JSON, nullable=False),
        sa.Column("reason", sa.String(110), nullable=False),
        sa.Column("held_at", TIME, nullable=False),
        sa.UniqueConstraint("message_id", name="uq_held_events_message_id"),
        if_not_exists=True,
        **TEXT,
    )
    if "ix_held_events_saga_instance_id_id" not in _indexes("held_events"):
        op.create_index("ix_held_events_saga_instance_id_id", "held_events", ["saga", "instance_id", "id"])


def downgrade() -> None:
    op.drop_table("held_events", if_exists=True)
    op.drop_table("saga_definitions", if_exists=True)


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
