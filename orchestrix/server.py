"""How do a node and a development server run?"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from orchestrix import descriptors
from orchestrix.api.application import build
from orchestrix.api.connections import Limits, Server, config, out_of_descriptors
from orchestrix.api.context import ApiContext
from orchestrix.api.guard import Guard
from orchestrix.api.streams import Streams
from orchestrix.bootstrap.dev import development
from orchestrix.bootstrap.former import Former
from orchestrix.bootstrap.hands import Hands
from orchestrix.bootstrap.node import Node, build_node
from orchestrix.bootstrap.parts import Signals, first_of, given_up
from orchestrix.bootstrap.ports import listening, nearby
from orchestrix.config import Settings
from orchestrix.lifecycle import CLOSE, settle_memory, stage

log = logging.getLogger("orchestrix")

RESIGN: Final = 5.0
"""Seconds that the leader's duties and its last word have, before the rest of the node ends all the same."""
STOP_HTTP = 5
"""Seconds that open requests have to end."""
STOP_NODE: Final = 60.0
"""Seconds that commits under way have to end, and links to be closed: a database that hangs is given up sooner."""
PROXIES: Final = "FORWARDED_ALLOW_IPS"
"""uvicorn's own variable: whose `X-Forwarded-For` is believed. Without it nobody's is, for anybody can send one."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a started process tells its operator."""

    api_url: str | None
    broker_url: str
    database_url: str
    roles: tuple[str, ...]
    node: str = ""
    notes: tuple[str, ...] = ()


def create_app(node: Node) -> FastAPI:
    """The ASGI application of `node`."""
    return build(
        ApiContext(
            database=node.database,
            catalog=node.catalog,
            starter=node.starter,
            watch=node.watch,
            control=node.control,
            explainer=node.explainer,
            stuck=node.stuck,
            surroundings=node.surroundings,
            redispatcher=node.redispatch,
            letters=node.letters,
            submitter=node.jobs.submitter,
            canceller=node.jobs.canceller,
            job_watch=node.jobs.watch,
            drainer=node.drainer,
            timetable=node.jobs.timetable,
            health=node.health,
            version=version("orchestrix"),
            silent=node.settings.jobs.silent,
            guard=_guard(node.settings),
            streams=Streams(node.settings.http.max_streams),
            resources=node.resources,
            tokens={name: secret.get_secret_value() for name, secret in node.settings.api.tokens.items()},
        )
    )


def _guard(settings: Settings) -> Guard:
    """Whoever has no tokens relies on being reached from this machine alone."""
    open_to_all = settings.api.auth == "none" or bool(settings.api.tokens)
    return Guard(check_host=not open_to_all, allowed=settings.http.allowed_hosts)


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

    async def tell(running: Running) -> None:
        ready(running)

    await _run(node, None, [settings.http.port], tell, broker_url)


async def run_dev(
    settings: Settings,
    *,
    folder: Path,
    broker_ports: Sequence[int],
    api_ports: Sequence[int],
    ready: Callable[[Running], None],
    former: Former | None = None,
    cut_off: Callable[[str], None] = lambda node: None,
) -> None:
    """Runs everything in this process, over SQLite and the embedded broker, until SIGINT or SIGTERM.

    Of the ports the first free one is taken, else one above the last. `former` is the `dev` before it, if that was
    killed; `cut_off` gets the name of this one's node when a second signal ends it. Raises `ConfigError` and
    `DefinitionError`.
    """
    async with development(settings, folder=folder, broker_ports=broker_ports, former=former) as dev:

        async def tell(running: Running) -> None:
            # In a thread, for it writes files.
            await asyncio.to_thread(ready, replace(running, notes=tuple(dev.left.told())))

        def last() -> None:
            try:
                cut_off(dev.node.name)
            finally:
                dev.worker.cut_off()  # it tells a terminal, or a pipe that nobody reads

        await _run(dev.node, dev.worker, nearby(*api_ports), tell, lambda: dev.broker_url, last)


async def _run(
    node: Node,
    worker: Hands | None,
    ports: Iterable[int],
    ready: Callable[[Running], Awaitable[None]],
    broker_url: Callable[[], str],
    last: Callable[[], None] = lambda: None,
) -> None:
    asyncio.get_running_loop().set_exception_handler(out_of_descriptors)
    with Signals(last) as signals:
        server = _server(node) if "api" in node.roles else None
        sockets = [listening(node.settings.http.host, ports)] if server is not None else []
        serving = asyncio.create_task(server.serve(sockets=sockets), name="http") if server is not None else None
        await node.start()
        running = _running(node, sockets, broker_url)
        beginning = asyncio.create_task(_begin(node, worker, lambda: ready(running)), name="begin")
        try:
            await first_of(signals.stop, beginning)
        finally:
            node.health.draining = True
            await given_up(beginning)
            await _stop(node, worker, server, serving)


async def _begin(node: Node, worker: Hands | None, ready: Callable[[], Awaitable[None]]) -> None:
    await node.begin()
    if worker is not None:
        await worker.start()
    await node.settled()
    settle_memory()
    await ready()


async def _stop(node: Node, worker: Hands | None, server: Server | None, serving: asyncio.Task[None] | None) -> None:
    """First what has work in hand, in the order in which it is handed on; then what answers; then what that needs.

    Each has its time: what does not end in it is told, and left behind.
    """
    node.health.draining = True
    await stage("giving up the lead", node.resign(), RESIGN)
    if worker is not None:
        await stage("stopping the worker", worker.stop(), worker.within)
    await stage("leaving the cluster", node.retire(), node.within)
    if server is not None and serving is not None:
        server.should_exit = True
        await stage("ending HTTP", serving, STOP_HTTP + CLOSE)
    await stage("stopping the node", node.stop(), STOP_NODE)


def _server(node: Node) -> Server:
    http = node.settings.http
    most = descriptors.for_http(descriptors.limit(), node.settings.database.pool_size, http.max_connections)
    limits = Limits(head=http.head_timeout, body=http.body_timeout, keep_alive=http.keep_alive, connections=most)
    return Server(config(create_app(node), limits, stop=STOP_HTTP, proxied=PROXIES in os.environ))


def _running(node: Node, sockets: list[socket.socket], broker_url: Callable[[], str]) -> Running:
    host, port = sockets[0].getsockname()[:2] if sockets else ("", 0)
    return Running(
        api_url=f"http://{host}:{port}" if sockets else None,
        broker_url=broker_url(),
        database_url=node.settings.database_url or "",
        roles=tuple(sorted(node.roles)),
        node=node.name,
    )


__all__ = ["Former", "Running", "create_app", "openapi", "run_dev", "run_serve"]
