"""How do a node and a development server run?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from app.api.application import build
from app.api.context import ApiContext
from app.bootstrap.node import Node, build_node
from app.bootstrap.parts import Signals, first_of, load_catalog
from app.broker.devserver import DevServer
from app.config import Settings
from app.errors import ConfigError
from app.persistence import schema
from workers import Worker
from workers.sdk import assemble

log = logging.getLogger("orchestrix")

STOP_HTTP = 5
"""Seconds that open requests have to end."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a started process tells its operator."""

    api_url: str | None
    broker_url: str
    database_url: str
    roles: tuple[str, ...]
    notes: list[str] = field(default_factory=list)


class Server(uvicorn.Server):
    """The HTTP server; signals are the process's business, not its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def create_app(node: Node) -> FastAPI:
    """The ASGI application of `node`."""
    return build(
        ApiContext(
            database=node.database,
            catalog=node.catalog,
            starter=node.starter,
            watch=node.watch,
            health=node.health,
            version=version("orchestrix"),
            settings=node.settings,
        )
    )


def openapi(settings: Settings) -> dict[str, Any]:
    """The OpenAPI document of the sagas in `settings`; needs neither database nor broker."""
    offline = settings.model_copy(update={"database_url": "sqlite+aiosqlite:///never-opened.db"})
    return create_app(build_node(offline, frozenset({"api"}), "amqp://localhost/")).openapi()


async def run_serve(
    settings: Settings,
    *,
    roles: frozenset[str],
    broker_url: Callable[[], str],
    ready: Callable[[Running], None],
) -> None:
    """Runs a node until SIGINT or SIGTERM. Raises `SchemaMismatch`, `ConfigError`, `DefinitionError`."""
    node = build_node(settings, roles, broker_url)
    await _run(node, None, settings, ready, broker_url)


async def run_dev(
    settings: Settings,
    *,
    folder: Path,
    broker_port: int,
    api_port: int,
    ready: Callable[[Running], None],
) -> None:
    """Runs everything in this process, over SQLite and the embedded broker, until SIGINT or SIGTERM."""
    broker, notes = await _dev_broker(broker_port)
    try:
        settings = _dev_settings(settings, folder, api_port)
        assert settings.database_url is not None
        await schema.upgrade(settings.database_url)
        node = build_node(settings, frozenset({"api", "orchestrator", "coordinator"}), broker.url)
        worker = assemble(settings, node.database, node.broker, node.catalog, [])
        await _run(node, worker, settings, lambda running: ready(_noted(running, notes)), lambda: broker.url)
    finally:
        await broker.stop()


def _dev_settings(settings: Settings, folder: Path, api_port: int) -> Settings:
    root = folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    return settings.model_copy(
        update={
            "database_url": settings.database_url or f"sqlite+aiosqlite:///{root / 'orchestrix.db'}",
            "http": settings.http.model_copy(update={"port": api_port}),
            "git": settings.git.model_copy(update={"root": str(root / "repos")}),
        }
    )


async def _dev_broker(port: int) -> tuple[DevServer, list[str]]:
    for candidate in [*range(port, port + 20), 0]:
        server = DevServer(port=candidate)
        try:
            await server.start()
        except OSError:
            continue
        return server, [] if server.port == port else [f"port {port} is taken: the broker listens on {server.port}"]
    raise ConfigError("no port of this machine is free for the embedded broker")


def _noted(running: Running, notes: list[str]) -> Running:
    running.notes.extend(notes)
    return running


async def _run(
    node: Node,
    worker: Worker | None,
    settings: Settings,
    ready: Callable[[Running], None],
    broker_url: Callable[[], str],
) -> None:
    with Signals() as signals:
        server = _server(node, settings) if "api" in node.roles else None
        sockets = [_bound(settings)] if server is not None else []
        serving = asyncio.create_task(server.serve(sockets=sockets), name="http") if server is not None else None
        await node.start()
        running = _running(node, settings, sockets, broker_url)
        beginning = asyncio.create_task(_begin(node, worker, lambda: ready(running)), name="begin")
        try:
            await first_of(signals.stop, beginning)
        finally:
            beginning.cancel()
            await _stop(node, worker, server, serving)


async def _begin(node: Node, worker: Worker | None, ready: Callable[[], None]) -> None:
    await node.begin()
    if worker is not None:
        await worker.start()
    await node.settled()
    ready()


async def _stop(node: Node, worker: Worker | None, server: Server | None, serving: asyncio.Task[None] | None) -> None:
    node.health.draining = True
    if server is not None and serving is not None:
        server.should_exit = True
        await serving
    if worker is not None:
        await worker.stop()
    await node.stop()


def _server(node: Node, settings: Settings) -> Server:
    return Server(
        uvicorn.Config(
            create_app(node),
            host=settings.http.host,
            port=settings.http.port,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=STOP_HTTP,
        )
    )


def _bound(settings: Settings) -> socket.socket:
    """The listening socket, so that a taken port is a sentence and not a stack trace."""
    try:
        family = socket.AF_INET6 if ":" in settings.http.host else socket.AF_INET
        listening = socket.create_server((settings.http.host, settings.http.port), family=family, backlog=2048)
    except OSError as taken:
        raise ConfigError(
            f"cannot listen on {settings.http.host}:{settings.http.port} ({taken.strerror}): choose another --port"
        ) from taken
    listening.setblocking(False)
    # Each connection inherits it. asyncio sets it only where the socket names its protocol, which this one does not;
    # without it an answer's body waits for the client's acknowledgement of the head, which many delay by 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _running(node: Node, settings: Settings, sockets: list[socket.socket], broker_url: Callable[[], str]) -> Running:
    host, port = sockets[0].getsockname()[:2] if sockets else ("", 0)
    return Running(
        api_url=f"http://{host}:{port}" if sockets else None,
        broker_url=broker_url(),
        database_url=settings.database_url or "",
        roles=tuple(sorted(node.roles)),
    )


__all__ = ["Running", "create_app", "load_catalog", "openapi", "run_dev", "run_serve"]
