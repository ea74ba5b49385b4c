"""Tables: every table of the library, on one page."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema.column_types import CHARSET, COLLATION, BigId, Body, Json, Name, UtcTime
from orchestrix.persistence.schema.definition_columns import held_events_columns, saga_definitions_columns
from orchestrix.persistence.schema.job_columns import job_attempts_columns, jobs_columns
from orchestrix.persistence.schema.registry_columns import (
    executor_suspicions_columns,
    job_group_columns,
    job_registry_columns,
    node_listeners_columns,
    registry_removed_columns,
)
from orchestrix.persistence.schema.saga_columns import (
    NEVER_STUCK,
    blockers,
    history_columns,
    instance_columns,
    stuck,
    suspect_columns,
)
from orchestrix.persistence.schema.schedule_columns import schedules_columns
from orchestrix.persistence.schema.shard_columns import (
    generations_columns,
    shard_assignments_columns,
    shard_services_columns,
    shard_workers_columns,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *items: SchemaItem) -> Table:
    # On MySQL the server's defaults would decide which characters can be stored and whether 'x' is 'X'.
    return Table(name, metadata, *items, mysql_engine="InnoDB", mysql_charset=CHARSET, mysql_collate=COLLATION)


apps = _table(
    "apps",
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("app_name", Name(200), nullable=False),
    *instance_columns(),
    UniqueConstraint("app_name", postgresql_include=["created_at", "id"]),  # the latest of many names, without the rows
    CheckConstraint(NEVER_STUCK, name="never_stuck"),
    Index(None, "created_at", "id", "app_name"),  # the newest of many, looked through by name without the rows
    Index(None, "state", "created_at", "id"),
    Index(None, "created_by", "created_at", "id"),
    Index(None, "created_by", "state", "created_at", "id"),
    Index(None, "wake_at"),
    stuck("apps", "created_at", "id"),
    blockers("apps"),
)

app_state_history = _table("app_state_history", *history_columns("app_id", "apps"))

saga_instances = _table(
    "saga_instances",
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("saga", String(40), nullable=False),
    Column("key", Name(200), nullable=False),
    *instance_columns(),
    UniqueConstraint("saga", "key", postgresql_include=["created_at", "id"]),
    CheckConstraint(NEVER_STUCK, name="never_stuck"),
    Index(None, "saga", "created_at", "id", "key"),
    Index(None, "saga", "state", "created_at", "id"),
    Index(None, "saga", "created_by", "created_at", "id"),
    Index(None, "saga", "created_by", "state", "created_at", "id"),
    Index(None, "wake_at"),
    stuck("saga_instances", "saga", "created_at", "id"),
    blockers("saga_instances"),
)

saga_history = _table("saga_history", *history_columns("instance_id", "saga_instances"))

saga_notes = _table(
    "saga_notes",
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("saga", String(40), nullable=False),
    Column("instance_id", BigInteger, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("type", String(110), nullable=False),
    Column("reason", String(110), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("first_at", UtcTime, nullable=False),
    Column("last_at", UtcTime, nullable=False),
    UniqueConstraint("saga", "instance_id", "kind", "type", "reason"),
)

outbox = _table(
    "outbox",
    Column("id", String(36), nullable=False),
    Column("saga", String(40), nullable=False),
    Column("instance_id", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("n", Integer, nullable=False),
    Column("exchange", String(255), nullable=False),
    Column("routing_key", String(255), nullable=False),
    Column("type", String(110), nullable=False),
    Column("correlation_id", String(128), nullable=False),
    Column("body", Body, nullable=False),
    Column("traceparent", String(64)),
    Column("tracestate", String(512)),
    Column("timeout_ms", BigInteger, nullable=False),
    Column("topology", Json),
    Column("created_at", UtcTime, nullable=False),
    Column("claimed_by", String(100)),
    Column("claimed_until", UtcTime, nullable=False),
    Column("parked_reason", Text),
    PrimaryKeyConstraint("id"),
    Index(None, "saga", "instance_id", "version", "n"),
    Index(None, "claimed_until"),
)

audit = _table(
    "audit",
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("at", UtcTime, nullable=False),
    Column("actor", Name(200), nullable=False),
    Column("verb", String(40), nullable=False),
    Column("saga", String(40)),
    Column("instance_id", BigInteger),
    Column("from_version", BigInteger),
    Column("to_version", BigInteger),
    Column("reason", Text, nullable=False),
    Column("detail", Json),
    Index(None, "saga", "instance_id", "id"),
    Index(None, "at", "id"),
    Index(None, "actor", "at", "id"),
    Index(None, "verb", "at", "id"),
    Index(None, "saga", "at", "id"),
    Index(None, "saga", "instance_id", "at", "id"),
)

dead_letters = _table(
    "dead_letters",
    Column("id", String(36), nullable=False),
    Column("queue", Name(255), nullable=False),
    Column("exchange", Name(255), nullable=False),
    Column("routing_key", Name(255), nullable=False),
    Column("type", Name(255), nullable=False),
    Column("saga", Name(40)),
    Column("instance_id", BigInteger),
    Column("message_id", Name(255)),
    Column("correlation_id", Name(255)),
    Column("reason", Name(500), nullable=False),
    Column("error", Text),
    Column("deliveries", BigInteger, nullable=False),
    Column("body", Body),
    Column("body_size", BigInteger, nullable=False),
    Column("body_sha256", String(64), nullable=False),
    Column("headers", Json, nullable=False),
    Column("died_at", UtcTime, nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
    Column("redriven_at", UtcTime),
    Column("redriven", Integer, nullable=False),
    Column("edited_at", UtcTime),
    PrimaryKeyConstraint("id"),
    Index(None, "died_at", "id"),
    Index(None, "redriven_at", "died_at", "id"),
    Index(None, "queue", "died_at", "id"),
    Index(None, "saga", "instance_id"),
)

throttles = _table(
    "throttles",
    Column("name", String(100), nullable=False),
    Column("tokens_micro", BigInteger, nullable=False),
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("name"),
)

broker_incarnation = _table(
    "broker_incarnation",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("incarnation", String(36), nullable=False),
    Column("changed_at", UtcTime, nullable=False),
)

command_queues = _table(
    "command_queues",
    Column("queue", Name(255), nullable=False),
    Column("begun_sent_at", UtcTime, nullable=False),
    Column("expired", Integer, nullable=False, server_default="0"),
    Column("expired_since", UtcTime),
    Column("wave", Integer),
    Column("wave_at", UtcTime),
    PrimaryKeyConstraint("queue"),
)

installation = _table(
    "installation",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("installation", String(36), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("last_app_id", BigInteger, nullable=False),
    Column("last_instance_id", BigInteger, nullable=False),
    Column("resetting", String(36)),
    Column("report_key", String(64)),
)

suspects = _table("suspects", *suspect_columns())

saga_definitions = _table("saga_definitions", *saga_definitions_columns())

held_events = _table("held_events", *held_events_columns())

write_probes = _table(
    "write_probes",
    Column("name", String(100), nullable=False),
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("name"),
)

idempotency_keys = _table(
    "idempotency_keys",
    Column("scope", String(64), nullable=False),
    Column("key", Name(255), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("headers", Json, nullable=False),
    Column("body", Body, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("scope", "key"),
    Index(None, "created_at"),
)

job_group = _table("job_group", *job_group_columns())
job_registry = _table("job_registry", *job_registry_columns())
registry_removed = _table("registry_removed", *registry_removed_columns())
node_listeners = _table("node_listeners", *node_listeners_columns())
executor_suspicions = _table("executor_suspicions", *executor_suspicions_columns())

leases = _table(
    "leases",
    Column("name", String(100), nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("holder", String(100), nullable=False),
    Column("mode", String(10), nullable=False),
    Column("lease_until", UtcTime, nullable=False),
    Column("gained_at", UtcTime, nullable=False),
    Column("resigned_at", UtcTime),
    PrimaryKeyConstraint("name"),
)

handovers = _table(
    "handovers",
    Column("term", BigInteger, nullable=False, autoincrement=False),
    Column("from_holder", String(100)),
    Column("to_holder", String(100), nullable=False),
    Column("mode", String(10), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("began_at", UtcTime, nullable=False),
    Column("gained_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    PrimaryKeyConstraint("term"),
)

nodes = _table(
    "nodes",
    Column("id", String(100), nullable=False),
    Column("name", String(40), nullable=False),
    Column("state", String(10), nullable=False),
    Column("roles", String(100), nullable=False),
    Column("job_count", Integer, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("beat_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("host", String(255)),
    Column("version", String(40)),
    Column("feature_level", Integer, nullable=False, server_default="0"),
    PrimaryKeyConstraint("id"),
    Index(None, "state", "beat_at"),
)

workers = _table(
    "workers",
    Column("id", String(100), nullable=False),
    Column("queues", Json, nullable=False),
    Column("jobs", Integer, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("beat_at", UtcTime, nullable=False),
    Column("said_at", UtcTime),
    Column("lost_places", Integer, nullable=False, server_default="0"),
    Column("host", String(255)),
    Column("version", String(40)),
    Column("command_queues", Json),
    Column("commands", Integer),
    Column("handlers", Json),
    PrimaryKeyConstraint("id"),
    Index(None, "beat_at"),
)

jobs = _table("jobs", *jobs_columns())

job_attempts = _table("job_attempts", *job_attempts_columns())

job_logs = _table(
    "job_logs",
    Column("history_id", String(36), nullable=False),
    Column("seq", BigInteger, nullable=False, autoincrement=False),
    Column("job_id", String(36), nullable=False),
    Column("worker_id", Name(200)),
    Column("level", Name(20), nullable=False),
    Column("message", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("attempt", Integer, nullable=False, server_default="1"),
    PrimaryKeyConstraint("history_id", "seq"),
    Index(None, "job_id", "history_id", "seq"),
    Index(None, "job_id", "attempt", "seq"),
)

schedules = _table("schedules", *schedules_columns())

shard_services = _table("shard_services", *shard_services_columns())

shard_workers = _table("shard_workers", *shard_workers_columns())

generations = _table("generations", *generations_columns())

shard_assignments = _table("shard_assignments", *shard_assignments_columns())
