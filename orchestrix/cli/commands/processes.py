"""Processes: start `dev`, `serve` and `worker`, which run until they are stopped."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from orchestrix import clock, file_descriptors
from orchestrix.cli import devfile, endpoints, exit_codes, output
from orchestrix.cli.banner import banner
from orchestrix.cli.commands import reload
from orchestrix.cli.settings import chosen, load, read
from orchestrix.config.settings import LogSettings, Settings
from orchestrix.config.tokens import SECRET_RECOMMENDED_CHARS
from orchestrix.errors import ConfigError, DefinitionError
from orchestrix.lifecycle import run_to_the_end
from orchestrix.telemetry import exporters, local_store, logs, sinks
from orchestrix.telemetry.log_events import PROCESS_READY
from orchestrix.telemetry.process_stop import INTERRUPTED, ProcessStop, stop_logged

if TYPE_CHECKING:
    from orchestrix.server import Running

API_PORT = 8080
BROKER_PORT = 5673
ROLES = ("api", "orchestrator", "coordinator")

log = logging.getLogger("orchestrix")
_BROKER_LOG = logging.getLogger("orchestrix.broker.embedded.server")


_BROKER_NOTE = "the embedded broker is for development only: its messages are lost when it stops"


def _is_shown_by_banner(record: logging.LogRecord) -> bool:
    """False for the embedded broker's warning that it is for development."""
    return record.levelno != logging.WARNING


def dev(arguments: argparse.Namespace) -> int:
    """`dev`: everything in this process, until SIGINT or SIGTERM; Ctrl-C before it is ready is no error either."""
    # An error is said on the same terminal anyway, by the end of the command.
    stop = ProcessStop(log, error_level=logging.INFO)
    if reload.is_wanted(arguments.reload):
        _dev_reloading(arguments, stop)
    else:
        _dev_until_stopped(arguments, stop, _say_stopped)
    return exit_codes.OK


def _dev_reloading(arguments: argparse.Namespace, stop: ProcessStop) -> None:
    """Starts again after each change. Code that does not even start is reported, and its change waited for."""
    watch = reload.SourceWatch(reload.watched(read(arguments), Path.cwd()))
    changed = None
    with suppress(KeyboardInterrupt):
        try:
            with reload.Reloader(watch, stop) as reloader:
                _dev_until_stopped(arguments, stop, lambda: None if reloader.changed else _say_stopped())
            changed = reloader.changed
        except (ConfigError, DefinitionError) as error:
            exit_codes.report(error)
            print("Waiting for a change of a source file. Ctrl-C to stop.", flush=True)
            changed = watch.wait()
    if changed is not None:
        reload.restart(changed)


def _say_stopped() -> None:
    with suppress(BrokenPipeError):
        print("Stopped. What is not finished goes on at the next start.", flush=True)


def _dev_until_stopped(arguments: argparse.Namespace, stop: ProcessStop, say_stopped: Callable[[], None]) -> None:
    _BROKER_LOG.addFilter(_is_shown_by_banner)
    try:
        with suppress(KeyboardInterrupt), stop_logged(stop):
            try:
                _dev(arguments, stop)
            except KeyboardInterrupt:
                stop.begin(INTERRUPTED)
            say_stopped()
    finally:
        _BROKER_LOG.removeFilter(_is_shown_by_banner)


def _dev(arguments: argparse.Namespace, stop: ProcessStop) -> None:
    began = clock.monotonic()
    folder = Path.cwd()
    settings = load(arguments, judged=True)
    _begin()
    logs.setup(_dev_logs(settings, arguments), node=settings.node_id, role="dev", stream=sys.stderr)
    _warn_of_missing_authentication(settings, frozenset(ROLES))
    _warn_of_short_secrets(settings)
    with devfile.claimed(folder) as last:
        from orchestrix.server import PreviousDev, run_dev

        ports = _dev_ports(settings, arguments, folder)
        run_to_the_end(
            run_dev(
                settings,
                folder=folder / devfile.FOLDER,
                broker_ports=ports.broker,
                api_ports=ports.api,
                ready=partial(_print_banner, settings, folder, ports, began),
                former=PreviousDev(last.node, last.cut_off) if last is not None else None,
                cut_off=lambda node: devfile.keep_life(folder, devfile.DevRun(node, cut_off=True)),
                process_stop=stop,
            )
        )


def serve(arguments: argparse.Namespace) -> int:
    """`serve`: a node, until SIGINT or SIGTERM. It waits for the database and the broker, but upgrades nothing."""
    folder = Path.cwd()
    settings = load(arguments, judged=True)
    roles = _roles(arguments.roles)
    _refuse_missing_authentication(settings, roles)
    broker_url, local_traces = endpoints.broker(settings, folder), _local_traces(settings, folder)
    settings = _placed(settings, folder, broker_url)
    _begin()
    logs.setup(settings.log, node=settings.node_id, role="node")
    _warn_of_missing_authentication(settings, roles)
    _warn_of_short_secrets(settings)
    from orchestrix.server import run_serve

    def ready(running: Running) -> None:
        log.info("ready", extra={"event": PROCESS_READY, "api_url": running.api_url, "roles": sorted(roles)})

    with stop_logged(ProcessStop(log)) as stop:
        run_to_the_end(
            run_serve(
                settings,
                roles=roles,
                broker_url=broker_url,
                ready=ready,
                local_traces=local_traces,
                process_stop=stop,
            )
        )
    return exit_codes.OK


def worker(arguments: argparse.Namespace) -> int:
    """`worker`: handles commands and runs jobs until SIGINT or SIGTERM. It waits for the database and the broker."""
    folder = Path.cwd()
    settings = load(arguments, judged=True)
    broker_url, local_traces = endpoints.broker(settings, folder), _local_traces(settings, folder)
    settings = _placed(settings, folder, broker_url)
    _begin()
    name = clock.unique_name(settings.node_id)
    logs.setup(settings.log, node=settings.node_id, role="worker", worker=name)
    from orchestrix.bootstrap import run_worker

    def ready(queues: Sequence[str]) -> None:
        more = {"queues": list(queues), "concurrency": settings.worker.concurrency}
        log.info("ready", extra={"event": PROCESS_READY, **more})

    with stop_logged(ProcessStop(log)) as stop:
        run_to_the_end(
            run_worker(
                settings,
                name=name,
                queues=arguments.queue,
                job_queues=arguments.job_queue,
                broker_url=broker_url,
                ready=ready,
                local_traces=local_traces,
                process_stop=stop,
            )
        )
    return exit_codes.OK


def openapi(arguments: argparse.Namespace) -> int:
    """`openapi`: the document, without any server."""
    settings = load(arguments)
    from orchestrix.server import openapi as document

    output.print_json(document(settings))
    return exit_codes.OK


def asyncapi(arguments: argparse.Namespace) -> int:
    """`asyncapi`: the document of all messages, without any server."""
    settings = load(arguments)
    from orchestrix.server import asyncapi as document

    output.print_json(document(settings))
    return exit_codes.OK


def _begin() -> None:
    """What a long-running process does first."""
    sinks.install()
    exporters.quiet_sdk()
    file_descriptors.raise_limit()


def _print_banner(settings: Settings, folder: Path, ports: DevPorts, began: float, running: Running) -> None:
    """Writes the dev file and prints the banner once `dev` is ready. Raises `OSError`, which ends `dev`."""
    api_url = running.api_url or ""
    api, broker = _port_of(api_url), _port_of(running.broker_url)
    devfile.write(folder, database_url=running.database_url, broker_url=running.broker_url, api_url=api_url)
    devfile.keep_life(folder, devfile.DevRun(running.node))
    devfile.keep_ports(folder, api=api, broker=broker)
    text = banner(
        api_url=api_url,
        broker_url=running.broker_url,
        database_url=running.database_url,
        tries=_tries(settings, api_url),
        roles=running.roles,
        notes=[*ports.notes(api, broker), *running.notes, _BROKER_NOTE],
        seconds=clock.monotonic() - began,
    )
    with suppress(BrokenPipeError):  # the banner has no reader; the work continues
        print(text)
        sinks.confirm()


def _tries(settings: Settings, api_url: str) -> list[str]:
    """Lines to begin with: one for the first resource, else for the first saga, else how to get one."""
    from orchestrix.bootstrap.factories import load_catalog, resources_of
    from orchestrix.cli.commands.suggested_command import first_line
    from orchestrix.resource import APPS

    for resource in resources_of(settings):
        shell = "orchestrix apps create shop --by ada --wait" if resource.path == APPS else ""
        return [first_line(api_url, resource), *filter(None, [shell])]
    for saga in load_catalog(settings):
        return [f"orchestrix sagas create {saga.name} first --by ada --wait"]
    return ["orchestrix init shop    writes a small service to start from: no saga is configured here"]


@dataclass(frozen=True, slots=True)
class DevPorts:
    """The ports that `dev` wants, in this order."""

    api: Sequence[int]
    broker: Sequence[int]

    def notes(self, api: int, broker: int) -> list[str]:
        """A sentence for each port that is not the expected one."""
        both = (("API", self.api[0], api), ("broker", self.broker[0], broker))
        return [
            f"port {first} is taken, so the {what} listens on {found}"
            for what, first, found in both
            if first not in (0, found)
        ]


def _dev_ports(settings: Settings, arguments: argparse.Namespace, folder: Path) -> DevPorts:
    last = devfile.last_ports(folder)
    api = [settings.http.port] if chosen("http.port", arguments, settings) else [last.api, API_PORT]
    return DevPorts([port for port in api if port is not None], [port for port in (last.broker, BROKER_PORT) if port])


def _dev_logs(settings: Settings, arguments: argparse.Namespace) -> LogSettings:
    """The log settings of `dev`: only warnings beside the banner, unless the user asks for more."""
    level = settings.log.level if chosen("log.level", arguments, settings) else "warning"
    form = "pretty" if settings.log.format == "auto" else settings.log.format
    return settings.log.model_copy(update={"level": level, "format": form})


def _roles(text: str | None) -> frozenset[str]:
    names = {name.strip() for name in text.split(",")} - {""} if text is not None else set(ROLES)
    if strange := sorted(names - set(ROLES)):
        raise ConfigError(f"unknown role {strange[0]!r}: use some of {','.join(ROLES)}")
    if not names:
        raise ConfigError(f"a node needs a role: use some of --roles {','.join(ROLES)}")
    return frozenset(names)


def _placed(settings: Settings, folder: Path, broker_url: Callable[[], str]) -> Settings:
    return settings.model_copy(
        update={"database_url": endpoints.database(settings, folder), "broker_url": broker_url()}
    )


def _local_traces(settings: Settings, folder: Path) -> Path | None:
    """The local store of the `dev` in this folder, for a process that uses its database or its broker."""
    if settings.database_url and settings.broker_url:
        return None
    return folder / devfile.FOLDER / local_store.FILE_NAME


def _refuse_missing_authentication(settings: Settings, roles: frozenset[str]) -> None:
    if _lacks_authentication(settings, roles) and settings.api.auth != "none":
        raise ConfigError(
            f"anyone who can reach {settings.http.host} could use the API: set ORCHESTRIX_API__TOKENS="
            "name:secret,… or, if something else protects it, ORCHESTRIX_API__AUTH=none"
        )


def _warn_of_missing_authentication(settings: Settings, roles: frozenset[str]) -> None:
    if _lacks_authentication(settings, roles):
        where = (settings.http.host, settings.http.port)
        log.warning("authentication is disabled: anyone who can reach %s:%d can use the API", *where)


def _warn_of_short_secrets(settings: Settings) -> None:
    registry = [(f"registry.token {app}".rstrip(), secret) for app, secret in settings.registry.secrets().items()]
    short = [
        name
        for name, secret in (*settings.api.tokens.items(), *registry)
        if len(secret.get_secret_value()) < SECRET_RECOMMENDED_CHARS
    ]
    if short:
        log.warning(
            "a secret can be guessed if it is shorter than %d: use longer ones for %s",
            SECRET_RECOMMENDED_CHARS,
            ", ".join(short),
        )


def _lacks_authentication(settings: Settings, roles: frozenset[str]) -> bool:
    """Whether others than this machine's users can reach the API without authentication."""
    return "api" in roles and not settings.api.tokens and not _is_loopback(settings.http.host)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False  # a name can mean anything


def _port_of(url: str) -> int:
    return urlsplit(url).port or 0
