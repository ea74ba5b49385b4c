"""How are the processes started that stay: `dev`, `serve` and `worker`?"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app import clock
from app.cli import devfile, exits, output, places
from app.cli.banner import banner
from app.cli.ports import free_port
from app.cli.settings import chosen, load
from app.config import LogSettings, Settings
from app.errors import ConfigError
from app.telemetry import logs

if TYPE_CHECKING:
    from app.main import Running

API_PORT = 8080
BROKER_PORT = 5673
ROLES = ("api", "orchestrator", "coordinator")
DUTIES = frozenset({"api", "orchestrator"})

log = logging.getLogger("orchestrix")


def dev(arguments: argparse.Namespace) -> int:
    """`dev`: everything in this process, until SIGINT or SIGTERM; Ctrl-C before it is ready is a good end as well."""
    with suppress(KeyboardInterrupt):
        _dev(arguments)
    with suppress(BrokenPipeError):
        print("Stopped. What is not finished goes on at the next start.", flush=True)
    return exits.OK


def _dev(arguments: argparse.Namespace) -> None:
    began = clock.monotonic()
    folder = Path.cwd()
    settings = load(arguments)
    logs.setup(_dev_logs(settings, arguments), node=settings.node_id, role="dev", stream=sys.stderr)
    with devfile.claimed(folder):
        ports, notes = _dev_ports(settings, arguments, folder)
        _run_dev(settings, folder, ports, _Greeting(settings, folder, notes, began))


def serve(arguments: argparse.Namespace) -> int:
    """`serve`: a node, until SIGINT or SIGTERM. It waits for the database and the broker, but upgrades nothing."""
    folder = Path.cwd()
    settings = load(arguments)
    roles = _roles(arguments.roles)
    broker_url = places.broker(settings, folder)
    settings = _placed(settings, folder, broker_url)
    logs.setup(settings.log, node=settings.node_id, role="node")
    _warn_of_open_door(settings, roles)
    from app.main import run_serve

    def ready(running: Running) -> None:
        log.info("ready", extra={"api_url": running.api_url, "roles": sorted(roles)})

    asyncio.run(run_serve(settings, roles=roles, broker_url=broker_url, ready=ready))
    return exits.OK


def worker(arguments: argparse.Namespace) -> int:
    """`worker`: handles commands until SIGINT or SIGTERM. It waits for the database and the broker."""
    folder = Path.cwd()
    settings = load(arguments)
    broker_url = places.broker(settings, folder)
    settings = _placed(settings, folder, broker_url)
    logs.setup(settings.log, node=settings.node_id, role="worker")
    from app.bootstrap import run_worker

    def ready(queues: Sequence[str]) -> None:
        log.info("ready", extra={"queues": list(queues), "concurrency": settings.worker.concurrency})

    asyncio.run(run_worker(settings, queues=arguments.queue, broker_url=broker_url, ready=ready))
    return exits.OK


def openapi(arguments: argparse.Namespace) -> int:
    """`openapi`: the document, without any server."""
    settings = load(arguments)
    from app.main import openapi as document

    output.print_json(document(settings))
    return exits.OK


class _Greeting:
    """Tells the folder and the user, once `dev` is ready."""

    def __init__(self, settings: Settings, folder: Path, notes: Sequence[str], began: float) -> None:
        self.failure: Exception | None = None
        self._settings = settings
        self._folder = folder
        self._notes = notes
        self._began = began

    def __call__(self, running: Running) -> None:
        """Runs as a callback of the event loop, which would swallow an error: so it is kept, and `dev` ends with it."""
        try:
            self._tell(running)
        except Exception as error:
            self.failure = error
            signal.raise_signal(signal.SIGTERM)

    def _tell(self, running: Running) -> None:
        api_url = running.api_url or ""
        devfile.write(self._folder, database_url=running.database_url, broker_url=running.broker_url, api_url=api_url)
        devfile.keep_ports(self._folder, api=_port_of(api_url), broker=_port_of(running.broker_url))
        text = banner(
            api_url=api_url,
            broker_url=running.broker_url,
            database_url=running.database_url,
            repos=f"./{devfile.FOLDER}/repos/" if self._settings.git.provider == "local" else None,
            roles=running.roles,
            notes=list(dict.fromkeys([*self._notes, *running.notes])),
            seconds=clock.monotonic() - self._began,
        )
        with suppress(BrokenPipeError):  # nobody reads the banner; the work goes on
            print(text, flush=True)


def _run_dev(settings: Settings, folder: Path, ports: devfile.Ports, greeting: _Greeting) -> None:
    from app.main import run_dev

    home = folder / devfile.FOLDER
    assert ports.api is not None
    assert ports.broker is not None
    asyncio.run(run_dev(settings, folder=home, broker_port=ports.broker, api_port=ports.api, ready=greeting))
    if greeting.failure is not None:
        raise greeting.failure


def _dev_ports(settings: Settings, arguments: argparse.Namespace, folder: Path) -> tuple[devfile.Ports, list[str]]:
    """The ports to use, and a sentence for each that is not the expected one."""
    last = devfile.last_ports(folder)
    if chosen("http.port", arguments):
        wanted = [settings.http.port]
    else:
        wanted = [last.api, API_PORT] if last.api else [API_PORT]
    api = free_port(settings.http.host, *wanted) if wanted != [0] else 0
    brokers = [last.broker, BROKER_PORT] if last.broker else [BROKER_PORT]
    broker = free_port("127.0.0.1", *brokers)
    notes = [
        f"port {first} is taken, so the {what} listens on {found}"
        for what, first, found in (("API", wanted[0], api), ("broker", brokers[0], broker))
        if found != first
    ]
    return devfile.Ports(api, broker), notes


def _dev_logs(settings: Settings, arguments: argparse.Namespace) -> LogSettings:
    """Who tries things out wants the banner, and beyond it only what is wrong, unless he asks for more."""
    level = settings.log.level if chosen("log.level", arguments) else "warning"
    form = "pretty" if settings.log.format == "auto" else settings.log.format
    return settings.log.model_copy(update={"level": level, "format": form})


def _roles(text: str | None) -> frozenset[str]:
    names = {name.strip() for name in text.split(",")} - {""} if text is not None else set(ROLES)
    if strange := sorted(names - set(ROLES)):
        raise ConfigError(f"{strange[0]!r} is no role: write api, orchestrator or both, as --roles api,orchestrator")
    if not names & DUTIES:
        raise ConfigError("a node needs something to do: write --roles api, orchestrator or both")
    return frozenset(names)


def _placed(settings: Settings, folder: Path, broker_url: Callable[[], str]) -> Settings:
    return settings.model_copy(update={"database_url": places.database(settings, folder), "broker_url": broker_url()})


def _warn_of_open_door(settings: Settings, roles: frozenset[str]) -> None:
    host = settings.http.host
    if "api" in roles and host not in ("localhost", "::1") and not host.startswith("127."):
        log.warning("the API asks nobody who he is: everyone who can reach %s:%d can use it", host, settings.http.port)


def _port_of(url: str) -> int:
    return urlsplit(url).port or 0
