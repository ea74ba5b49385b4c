"""Factories: make the database, the broker and the sagas of a process from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from orchestrix import clock
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.amqp.supervisor import RECONNECT_MAX_S
from orchestrix.broker.port import Broker, WantedTopology
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError, SchemaMismatch
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database
from orchestrix.persistence.schema import migrator
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.worker.module_loader import load_resources, load_sagas

CONNECTION_HEARTBEAT_S: Final = 10
"""Seconds between two heartbeats of an idle connection."""


def open_database(settings: Settings) -> Database:
    """The database of `settings`; nothing is connected yet. Raises `ConfigError` if none is named."""
    if settings.database_url is None:
        raise ConfigError("no database given: set ORCHESTRIX_DATABASE_URL, or run `orchestrix dev` in this folder")
    return Database(settings.database_url, pool_size=settings.database.pool_size)


class Connect(Protocol):
    """Makes a connection to the broker under a name, with a topology that is declared at each connect."""

    def __call__(
        self,
        name: str,
        topology: WantedTopology | None = None,
        *,
        heartbeat: int = CONNECTION_HEARTBEAT_S,
        reconnect_max_s: float = RECONNECT_MAX_S,
    ) -> Broker:
        """`heartbeat` is in seconds: a peer that is silent for two of them is gone. `reconnect_max_s` are the longest
        seconds between two tries to connect."""


def open_broker(
    url: str | Callable[[], str],
    name: str,
    topology: WantedTopology | None = None,
    *,
    heartbeat: int = CONNECTION_HEARTBEAT_S,
    reconnect_max_s: float = RECONNECT_MAX_S,
    log_name: str | None = None,
) -> AmqpBroker:
    """The broker at `url`; nothing is connected yet. A callable is asked before each connect. See `Connect`.

    `log_name` stands for `name` in logs that have the process's id in a field.
    """
    return AmqpBroker(
        url,
        name=name,
        topology=topology,
        heartbeat=heartbeat,
        log_name=log_name,
        reconnect_max_s=reconnect_max_s,
    )


def load_catalog(settings: Settings) -> Catalog:
    """The sagas of the author's modules, and those of his resources. Raises `ConfigError` or `DefinitionError`."""
    sagas = load_sagas(settings.sagas, settings.origin.folder)
    by_resource = [one.saga for one in resources_of(settings)]
    return Catalog([*sagas, *(saga for saga in by_resource if not any(saga is one for one in sagas))])


def resources_of(settings: Settings) -> list[Resource]:
    """The author's resources: the sagas with paths of their own. Raises `ConfigError` or `DefinitionError`."""
    return load_resources(settings.resources, settings.origin.folder)


def unique_name(settings: Settings) -> str:
    """The id in messages: the node's name and a mark of this start."""
    return clock.unique_name(settings.node_id)


async def check_schema(database: Database) -> None:
    """Raises `SchemaMismatch` with the command to run, or `Unavailable`. Reads what this process has to know of it."""
    await check_revision(database)
    async with database.read() as connection:
        await installation.known(connection)


async def check_revision(database: Database) -> None:
    """Raises `SchemaMismatch` with the command to run, or `Unavailable`."""
    current = await migrator.current(database)
    if current == migrator.HEAD:
        return
    if current is None or current < migrator.HEAD:
        have = f"is at revision {current}" if current else "has no schema"
        raise SchemaMismatch(f"the database {have}, this version needs {migrator.HEAD}: run `orchestrix db upgrade`")
    newer = f"the database is at revision {current}, newer than this version ({migrator.HEAD})"
    raise SchemaMismatch(f"{newer}: upgrade Orchestrix")
