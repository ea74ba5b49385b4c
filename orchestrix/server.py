"""Server: runs a node or a development server, alone or within another ASGI server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from orchestrix import file_descriptors
from orchestrix.api.app import build
from orchestrix.api.asyncapi import document as messages
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.guards.connections import ConnectionLimits, Server, config, out_of_descriptors
from orchestrix.api.guards.entrance import Entrance
from orchestrix.api.guards.origin_guard import OriginGuard
from orchestrix.api.guards.stream_limits import Streams
from orchestrix.api.traces.links import LinkTemplates
from orchestrix.bootstrap.dev_recovery import PreviousDev
from orchestrix.bootstrap.dev_worker import DevWorker
from orchestrix.bootstrap.factories import load_catalog
from orchestrix.bootstrap.listening_socket import listening, nearby
from orchestrix.bootstrap.monitoring.port import STOP_TIMEOUT_S, node_port
from orchestrix.bootstrap.shards import shard_rules
from orchestrix.bootstrap.stop_signals import StopSignals, first_of, given_up
from orchestrix.bootstrap.traces import DEV_SERVICE, export_traces, node_service, stop_traces
from orchestrix.config import file
from orchestrix.config.settings import Settings, load
from orchestrix.development import development
from orchestrix.errors import ConfigError, OrchestrixError
from orchestrix.event_loop_watchdog import EventLoopWatchdog
from orchestrix.lifecycle import CLOSE_TIMEOUT_S, settle_memory, stop_stage
from orchestrix.node import Node, open_node
from orchestrix.telemetry import exporters, local_store, log_events, tracing
from orchestrix.telemetry.local_store import LocalTraces
from orchestrix.telemetry.process_stop import ProcessStop
from orchestrix.version import VERSION

log = logging.getLogger("orchestrix")

RESIGN_TIMEOUT_S: Final = 5.0
"""Seconds for the leader's duties to stop and its resignation to be written, before the rest of the node stops
regardless."""
STOP_HTTP_TIMEOUT_S = 5
"""Seconds that open requests have to end."""
STOP_NODE_TIMEOUT_S: Final = 60.0
"""Seconds that commits under way have to end, and connections to be closed: a database that hangs is abandoned
sooner."""
BEGIN_S: Final = 5.0
"""Seconds that an ASGI server's start waits for the database; then it serves, and says that it is starting."""
ROLES: Final = ("api", "orchestrator", "coordinator")
_NAME_IT: Final = "set ORCHESTRIX_{}, or {} in orchestrix.toml"
TRUSTED_PROXIES_VARIABLE: Final = "FORWARDED_ALLOW_IPS"
"""uvicorn's own variable: whose `X-Forwarded-For` is believed. Without it no one's is, for any client can send one."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a started process reports to its operator."""

    api_url: str | None
    broker_url: str
    database_url: str
    roles: tuple[str, ...]
    node: str = ""
    notes: tuple[str, ...] = ()


def application(node: Node, local_traces: Path | None = None) -> FastAPI:
    """The ASGI application of `node`, which the caller starts and stops. It shows the traces in the file
    `local_traces`, if they are kept there. Raises `DefinitionError`.
    """
    return build(
        ApiContext(
            database=node.context.database,
            catalog=node.context.catalog,
            starter=node.engine.starter,
            watch=node.engine.changes,
            control=node.engine.control,
            explainer=node.engine.explainer,
            stuck=node.engine.stuck,
            broker_status=node.engine.broker_status,
            redispatcher=node.engine.redispatch,
            dead_letters=node.dead_letters.service,
            submitter=node.jobs.submitter,
            canceller=node.jobs.canceller,
            retrier=node.jobs.retrier,
            job_watch=node.jobs.notifiers.changes,
            drain_requester=node.cluster.drain_requester,
            timetable=node.schedules,
            registry=node.registry,
            reports=node.jobs.reports,
            health=node.health,
            version=VERSION,
            silent=node.context.settings.jobs.silent,
            guard=_guard(node.context.settings),
            streams=Streams(node.context.settings.http.max_streams),
            resources=node.resources,
            shard_rules=shard_rules(node.context.settings.shards),
            gzip=node.context.settings.http.gzip,
            links=LinkTemplates(node.context.settings.ui.trace_url, node.context.settings.ui.logs_url),
            trace_reader=LocalTraces(local_traces) if local_traces is not None and tracing.enabled() else None,
            trace_endpoint=exporters.trace_endpoint(),
            tokens={name: secret.get_secret_value() for name, secret in node.context.settings.api.tokens.items()},
        )
    )


def _guard(settings: Settings) -> OriginGuard:
    """Without tokens, access is limited to this machine."""
    http, open_to_all = settings.http, settings.api.auth == "none" or bool(settings.api.tokens)
    return OriginGuard(check_host=not open_to_all, allowed=http.allowed_hosts, origins=http.cors_origins)


def openapi(settings: Settings) -> dict[str, Any]:
    """The OpenAPI document of the sagas in `settings`; needs neither database nor broker."""
    offline = settings.model_copy(update={"database_url": "sqlite+aiosqlite:///never-opened.db"})
    return application(open_node(offline, frozenset({"api"}), "amqp://localhost/")).openapi()


def asyncapi(settings: Settings) -> dict[str, Any]:
    """The AsyncAPI document of the sagas in `settings`; needs neither database nor broker. Raises `ConfigError` and
    `DefinitionError`.
    """
    return messages.document(VERSION, load_catalog(settings))


def create_app(settings: Settings | Path | str | None = None, *, roles: Iterable[str] = ROLES) -> FastAPI:
    """An application for an ASGI server, such as `uvicorn --factory app.main:create_app`: a node like `serve`.

    Its lifespan builds, starts and stops the node. The server listens and decides when to stop, and has to close open
    requests itself (`--timeout-graceful-shutdown 5`): streams have no end. Routes that are added to it come before the
    API's. `settings` may be the path of an `orchestrix.toml`; without it, that file is looked for as by the command.
    The environment's settings come before those of the file.

    Raises `ConfigError` and `DefinitionError`; starting it raises `SchemaMismatch`.
    """
    wanted = settings if isinstance(settings, Settings) else _settings(settings)
    chosen, broker_url = _with_api(roles), _broker_url(wanted)
    checked = application(open_node(wanted, chosen, broker_url))
    entrance = Entrance(only_here=not (wanted.api.tokens or wanted.api.auth == "none"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Not the node that was checked: an application may be started again, and in a process that was forked.
        node = open_node(wanted, chosen, broker_url)
        export_traces(wanted, node_service(chosen), node.context.name)
        entrance.inner = application(node)
        try:
            async with _started(node):
                yield
        finally:
            entrance.inner = None

    app = FastAPI(
        title="Orchestrix",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        telemetry={"auto_configure": False, "operation_spans": False, "exclude": lambda _: True},
    )
    app.openapi = checked.openapi  # type: ignore[method-assign]
    app.router.default = entrance
    return app


def _settings(path: Path | str | None) -> Settings:
    """Those of the environment and of the file at `path`, else of the one that is found from here."""
    if path is None:
        return load(file=file.found(None, os.environ, Path.cwd()))
    return load(file=file.read(Path(path), "create_app"))


def _with_api(roles: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(roles)
    if unknown := sorted(chosen - set(ROLES)):
        raise ConfigError(f"unknown role {unknown[0]!r}: known are {', '.join(ROLES)}")
    if "api" not in chosen:
        raise ConfigError("an application needs the role api: run `orchestrix serve` for a node without it")
    return chosen


def _broker_url(settings: Settings) -> str:
    """Raises `ConfigError` also without a database: what `dev` has in a folder is not looked at here."""
    if settings.database_url is None:
        raise ConfigError(f"no database given: {_NAME_IT.format('DATABASE_URL', 'database_url')}")
    if settings.broker_url in (None, "embedded"):
        named = "the embedded broker runs only inside `orchestrix dev`" if settings.broker_url else "no broker given"
        raise ConfigError(f"{named}: {_NAME_IT.format('BROKER_URL', 'broker_url')}")
    return settings.broker_url


@asynccontextmanager
async def _started(node: Node) -> AsyncIterator[None]:
    """The running node. Raises what keeps it from working, if that is known within `BEGIN_S`."""
    await node.start()
    begun = asyncio.create_task(node.begin(), name="begin")
    settled = asyncio.create_task(_settled(node, begun), name="settle")
    try:
        await asyncio.wait({begun}, timeout=BEGIN_S)
        if begun.done():
            begun.result()
        yield
    finally:
        node.health.stopping = True
        await given_up(settled)
        await given_up(begun)
        await _stop(node, None, None, None)


async def _settled(node: Node, begun: asyncio.Task[None]) -> None:
    try:
        await asyncio.shield(begun)
        await node.settled()
    except OrchestrixError as error:
        log.critical("the node cannot start: %s", text := str(error))
        node.health.watch("Start", lambda: text)
        return
    settle_memory()
    log.info("ready", extra={"event": log_events.PROCESS_READY, "roles": sorted(node.context.roles)})


async def run_serve(
    settings: Settings,
    *,
    roles: frozenset[str],
    broker_url: Callable[[], str],
    ready: Callable[[Running], None],
    local_traces: Path | None = None,
    process_stop: ProcessStop | None = None,
) -> None:
    """Runs a node until SIGINT or SIGTERM. `local_traces` is the file of a `dev` that it belongs to; `process_stop`
    gets why it stops.

    Raises `SchemaMismatch`, `ConfigError`, `DefinitionError`.
    """
    node = open_node(settings, roles, broker_url)

    async def announce(running: Running) -> None:
        ready(running)

    await _run(node, None, [settings.http.port], local_traces, announce, broker_url, process_stop)


async def run_dev(
    settings: Settings,
    *,
    folder: Path,
    broker_ports: Sequence[int],
    api_ports: Sequence[int],
    ready: Callable[[Running], None],
    former: PreviousDev | None = None,
    cut_off: Callable[[str], None] = lambda node: None,
    process_stop: ProcessStop | None = None,
) -> None:
    """Runs everything in this process, over SQLite and the embedded broker, until SIGINT or SIGTERM.

    Of the ports the first free one is taken, else one above the last. `former` is the `dev` before it, if that was
    killed; `cut_off` gets the name of this one's node when a second signal ends it; `process_stop` gets why it
    stops. Raises `ConfigError` and `DefinitionError`.
    """
    async with development(settings, folder=folder, broker_ports=broker_ports, previous=former) as dev:

        async def announce(running: Running) -> None:
            # In a thread, for it writes files.
            await asyncio.to_thread(ready, replace(running, notes=tuple(dev.left.sentences())))

        def last() -> None:
            try:
                cut_off(dev.node.context.name)
            finally:
                dev.worker.cut_off()  # it writes to a terminal, or to a pipe without a reader

        local_traces, broker = folder / local_store.FILE_NAME, lambda: dev.broker_url
        await _run(dev.node, dev.worker, nearby(*api_ports), local_traces, announce, broker, process_stop, last)


async def _run(
    node: Node,
    worker: DevWorker | None,
    ports: Iterable[int],
    local_traces: Path | None,
    ready: Callable[[Running], Awaitable[None]],
    broker_url: Callable[[], str],
    process_stop: ProcessStop | None = None,
    last: Callable[[], None] = lambda: None,
) -> None:
    stop = process_stop or ProcessStop(log)
    asyncio.get_running_loop().set_exception_handler(out_of_descriptors)
    service = DEV_SERVICE if worker is not None else node_service(node.context.roles)
    export_traces(node.context.settings, service, node.context.name, local_traces)
    with StopSignals(last, stop) as signals, EventLoopWatchdog(asyncio.get_running_loop()) as watchdog:
        server = _server(node, local_traces) if "api" in node.context.roles else None
        sockets = [listening(node.context.settings.http.host, ports)] if server is not None else []
        serving = asyncio.create_task(server.serve(sockets=sockets), name="http") if server is not None else None
        node.registry.listeners.bound(sockets)
        port = node_port(node.context.settings, node.context.roles, node.health)
        await port.start()
        await node.start()
        running = _running(node, sockets, broker_url)
        beginning = asyncio.create_task(_begin(node, worker, watchdog, lambda: ready(running)), name="begin")
        try:
            await first_of(signals.stop, beginning)
        finally:
            stop.begin()
            node.health.stopping = True
            await given_up(beginning)
            await _stop(node, worker, server, serving)
            await stop_stage("closing the monitoring port", port.stop(), STOP_TIMEOUT_S)


async def _begin(
    node: Node, worker: DevWorker | None, watchdog: EventLoopWatchdog, ready: Callable[[], Awaitable[None]]
) -> None:
    await node.begin()
    if worker is not None:
        await worker.start()
    await node.settled()
    settle_memory()
    watchdog.start()  # the HTTP server, whose task is older, listens by now
    await ready()


async def _stop(
    node: Node, worker: DevWorker | None, server: Server | None, serving: asyncio.Task[None] | None
) -> None:
    """Stops first what has work in flight, in the order of the hand-off; then the API; then what that needs.

    Each stage has a timeout: what does not end in it is logged, and abandoned.
    """
    node.health.stopping = True
    await stop_stage("resigning as leader", node.resign(), RESIGN_TIMEOUT_S)
    if worker is not None:
        await stop_stage("stopping the worker", worker.stop(), worker.shutdown_limit_s)
    await stop_stage("leaving the cluster", node.retire(), node.leave_limit_s)
    if server is not None and serving is not None:
        server.should_exit = True
        await stop_stage("stopping the HTTP server", serving, STOP_HTTP_TIMEOUT_S + CLOSE_TIMEOUT_S)
    await stop_stage("stopping the node", node.stop(), STOP_NODE_TIMEOUT_S)
    await stop_traces()


def _server(node: Node, local_traces: Path | None) -> Server:
    settings = node.context.settings
    http, pool_size = settings.http, settings.database.pool_size
    most = file_descriptors.for_http(file_descriptors.limit(), pool_size, http.max_connections)
    limits = ConnectionLimits(
        head=http.head_timeout, body=http.body_timeout, keep_alive=http.keep_alive, connections=most
    )
    proxied = TRUSTED_PROXIES_VARIABLE in os.environ
    return Server(config(application(node, local_traces), limits, stop=STOP_HTTP_TIMEOUT_S, proxied=proxied))


def _running(node: Node, sockets: list[socket.socket], broker_url: Callable[[], str]) -> Running:
    host, port = sockets[0].getsockname()[:2] if sockets else ("", 0)
    return Running(
        api_url=f"http://{host}:{port}" if sockets else None,
        broker_url=broker_url(),
        database_url=node.context.settings.database_url or "",
        roles=tuple(sorted(node.context.roles)),
        node=node.context.name,
    )


__all__ = ["PreviousDev", "Running", "application", "asyncapi", "create_app", "openapi", "run_dev", "run_serve"]
