"""Nouns: the table of all commands."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.cluster import AUDIT, CLUSTER, WORKERS
from orchestrix.cli.nouns.jobs import JOBS
from orchestrix.cli.nouns.local import (
    ASYNCAPI,
    CONFIG,
    DATABASE,
    DEV,
    DOCTOR,
    EXECUTOR_CHECK,
    INIT,
    OPENAPI,
    SERVE,
    WORKER,
    WORKER_CHECK,
)
from orchestrix.cli.nouns.recovery import DEAD_LETTERS, DEADLINES, REDISPATCH
from orchestrix.cli.nouns.registry import REGISTRY
from orchestrix.cli.nouns.sagas import APPS, SAGAS, STUCK, TRACE
from orchestrix.cli.nouns.schedules import SCHEDULES
from orchestrix.cli.nouns.shards import SHARDS
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand

TABLE: Final[tuple[CommandGroup | ShellCommand, ...]] = (
    INIT,
    DEV,
    SERVE,
    WORKER,
    DATABASE,
    APPS,
    SAGAS,
    STUCK,
    TRACE,
    DEADLINES,
    REDISPATCH,
    DEAD_LETTERS,
    JOBS,
    SCHEDULES,
    REGISTRY,
    SHARDS,
    CLUSTER,
    WORKERS,
    AUDIT,
    DOCTOR,
    CONFIG,
    OPENAPI,
    ASYNCAPI,
    WORKER_CHECK,
    EXECUTOR_CHECK,
)
