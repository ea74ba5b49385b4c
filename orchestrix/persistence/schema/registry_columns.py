"""Registry columns: registered executors, the groups that jobs are routed to, and addresses that no group may hold."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, PrimaryKeyConstraint, String, Text, UniqueConstraint
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema.column_types import BigId, Name, UtcTime


def job_registry_columns() -> list[SchemaItem]:
    """One row for each registered executor."""
    return [
        Column("id", BigId, primary_key=True, autoincrement=True),
        *_executor(),
        Column("update_time", UtcTime, nullable=False),
        Column("instance", Name(100)),
        Column("state", String(10), nullable=False),
        Column("weight", Integer, nullable=False),
        Column("load", Double()),
        Column("first_seen", UtcTime, nullable=False),
        Column("state_since", UtcTime, nullable=False),
        Column("drained_at", UtcTime),
        Column("instance_since", UtcTime),
        UniqueConstraint("registry_group", "registry_key", "registry_value", name="idx_g_k_v"),
        Index(None, "update_time"),
    ]


def registry_removed_columns() -> list[SchemaItem]:
    """One row for each removal, kept for minutes."""
    return [
        Column("id", BigId, primary_key=True, autoincrement=True),
        *_executor(),
        Column("instance", Name(100)),
        Column("reason", String(10), nullable=False),
        Column("last_seen", UtcTime),
        Column("drained_at", UtcTime),
        Column("removed_at", UtcTime, nullable=False),
        Index(None, "registry_key", "removed_at"),
        Index(None, "removed_at"),
    ]


def job_group_columns() -> list[SchemaItem]:
    """One row for each executor group."""
    return [
        Column("id", BigId, primary_key=True, autoincrement=True),
        Column("app_name", Name(200), nullable=False),
        Column("address_type", Integer, nullable=False),
        Column("address_list", Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
        Column("marker", String(300)),
        Column("created_at", UtcTime, nullable=False),
        Column("updated_at", UtcTime, nullable=False),
        Column("turn", BigInteger, nullable=False, server_default="0"),
        UniqueConstraint("app_name"),
    ]


def node_listeners_columns() -> list[SchemaItem]:
    """One row for each address on which a node listens."""
    return [
        Column("node", String(100), nullable=False),
        Column("ip", String(45), nullable=False),
        Column("port", Integer, nullable=False),
        Column("seen_at", UtcTime, nullable=False),
        PrimaryKeyConstraint("node", "ip", "port"),
    ]


def executor_suspicions_columns() -> list[SchemaItem]:
    """One row for each executor and each node that suspects it."""
    return [
        Column("registry_key", Name(200), nullable=False),
        Column("registry_value", Name(255), nullable=False),
        Column("node", String(100), nullable=False),
        Column("since", UtcTime, nullable=False),
        Column("probed_at", UtcTime, nullable=False),
        PrimaryKeyConstraint("registry_key", "registry_value", "node"),
    ]


def _executor() -> list[Column[str]]:
    return [
        Column("registry_group", String(20), nullable=False),
        Column("registry_key", Name(200), nullable=False),
        Column("registry_value", Name(255), nullable=False),
    ]
