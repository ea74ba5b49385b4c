"""Development assembly: the parts of `dev`, and the order in which they start."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrix.bootstrap.dev_recovery import PreviousDev, RecoveryResult, declare_dead
from orchestrix.bootstrap.dev_worker import DevWorker
from orchestrix.bootstrap.listening_socket import listening, nearby
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.config.settings import Settings
from orchestrix.config.urls import sqlite_url
from orchestrix.node import Node, open_node
from orchestrix.persistence.schema import migrator
from orchestrix.worker.composition import assemble

ROLES = frozenset({"api", "orchestrator", "coordinator"})
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
DATABASE: Final = "orchestrix.db"
REPOSITORIES: Final = "repos"


def tighten(folder: Path) -> None:
    """Removes the permissions of all but the owner in the folder of a `dev`, which is made where it is missing.

    Folders first: other users cannot reach what is in a closed one. What we may not change is left as it is, for the
    closed folder around it suffices. Raises `OSError` if the folder cannot be made.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    _take(folder, FOLDER_MODE)
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        _take(folder / name, FILE_MODE)
    repositories = folder / REPOSITORIES
    _take(repositories, FOLDER_MODE)
    with suppress(OSError):
        for one in repositories.iterdir():
            if one.is_dir() and not one.is_symlink():
                _take(one, FOLDER_MODE)


def _take(path: Path, mode: int) -> None:
    with suppress(OSError):
        if not path.is_symlink() and os.stat(path).st_mode & 0o077:
            os.chmod(path, mode)


@dataclass(frozen=True, slots=True)
class Development:
    """A node and a worker of one process over SQLite and the embedded broker. `left` is what the last `dev` of the
    folder had in progress when it was killed.
    """

    settings: Settings
    broker_url: str
    node: Node
    worker: DevWorker
    left: RecoveryResult


@asynccontextmanager
async def development(
    settings: Settings, *, folder: Path, broker_ports: Sequence[int], previous: PreviousDev | None = None
) -> AsyncIterator[Development]:
    """The parts, with the broker and the schema ready and nothing else started; the broker ends with the block.

    Raises `ConfigError`, `DefinitionError` and `SchemaMismatch`.
    """
    local = _local(settings, folder)
    broker = EmbeddedBroker()
    await broker.start(listening("127.0.0.1", nearby(*broker_ports)))
    try:
        assert local.database_url is not None
        await migrator.upgrade(local.database_url)
        node = open_node(local, ROLES, broker.url, single_process=True)
        dependencies, reader = node.context, node.engine.definitions
        worker = assemble(
            local,
            dependencies.database,
            dependencies.broker,
            dependencies.catalog,
            name=dependencies.name,
            reader=reader,
        )
        catalog, timeout_s = dependencies.catalog, local.worker.stop_timeout
        dev_worker = DevWorker(
            worker, broker, tuple(catalog.commands), tuple(catalog.events), lambda: node.current_id, timeout_s
        )
        left = await declare_dead(dependencies.database, previous) if previous is not None else RecoveryResult()
        yield Development(local, broker.url, node, dev_worker, left)
    finally:
        await broker.stop()


def _local(settings: Settings, folder: Path) -> Settings:
    root = folder.resolve()
    tighten(root)
    return settings.model_copy(
        update={
            "database_url": settings.database_url or sqlite_url(root / DATABASE),
        }
    )
