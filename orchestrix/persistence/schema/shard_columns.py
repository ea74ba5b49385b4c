"""Shard columns: services, the processes of their members, generations, and who has which shards."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, PrimaryKeyConstraint, String, UniqueConstraint
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema.column_types import BigId, Json, Name, UtcTime


def shard_services_columns() -> list[SchemaItem]:
    """One row for each service; `version` rises whenever anything of it but signs of life is stored."""
    return [
        Column("name", Name(200), nullable=False),
        Column("shard_count", Integer, nullable=False),
        Column("members", Integer, nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("counter", BigInteger, nullable=False),
        Column("number", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("created_at", UtcTime, nullable=False),
        Column("updated_at", UtcTime, nullable=False),
        PrimaryKeyConstraint("name"),
    ]


def shard_workers_columns() -> list[SchemaItem]:
    """One row for each process of a worker; `instance` is empty for S1's own clients."""
    return [
        Column("id", BigId, primary_key=True, autoincrement=True),
        Column("service", Name(200), nullable=False),
        Column("worker_id", Name(200), nullable=False),
        Column("instance", Name(100), nullable=False),
        Column("state", String(10), nullable=False),
        Column("shard_count", Integer, nullable=False),
        Column("weight", Integer, nullable=False),
        Column("grace_s", Double(), nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("answered", Integer, nullable=False),
        Column("reply_to", String(255)),
        Column("joined_at", UtcTime, nullable=False),
        Column("last_seen", UtcTime, nullable=False),
        Column("away_reason", String(10)),
        Column("away_at", UtcTime),
        Column("revoking", Json),
        Column("absent", Json),
        Column("via", String(100)),
        UniqueConstraint("service", "worker_id", "instance"),
        Index(None, "service", "state"),
    ]


def generations_columns() -> list[SchemaItem]:
    """One row for each generation of a service. `live` is the state while it is pending or active, else NULL: so a
    service has at most one of each. `shares` is kept while it is active.
    """
    return [
        Column("service", Name(200), nullable=False),
        Column("number", BigInteger, nullable=False, autoincrement=False),
        Column("state", String(10), nullable=False),
        Column("live", String(10)),
        Column("leader_id", String(100)),
        Column("leader_until", UtcTime),
        Column("cause", String(20), nullable=False),
        Column("cause_worker", Name(200)),
        Column("began_at", UtcTime, nullable=False),
        Column("closes_at", UtcTime, nullable=False),
        Column("activated_at", UtcTime),
        Column("ended_at", UtcTime),
        Column("revision", BigInteger, nullable=False),
        Column("shard_count", Integer, nullable=False),
        Column("members", Integer, nullable=False),
        Column("moved", Integer, nullable=False),
        Column("shares", Json),
        PrimaryKeyConstraint("service", "number"),
        UniqueConstraint("service", "live"),
        Index(None, "live", "leader_id"),
        Index(None, "ended_at"),
    ]


def shard_assignments_columns() -> list[SchemaItem]:
    """One row for each range of neighbouring shards that one process was granted under one epoch."""
    return [
        Column("service", Name(200), nullable=False),
        Column("first_shard", Integer, nullable=False, autoincrement=False),
        Column("last_shard", Integer, nullable=False),
        Column("worker_id", Name(200), nullable=False),
        Column("instance", Name(100), nullable=False),
        Column("epoch", BigInteger, nullable=False),
        PrimaryKeyConstraint("service", "first_shard"),
    ]
