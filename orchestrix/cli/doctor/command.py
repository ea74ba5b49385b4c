"""Doctor: finds what keeps this installation from working, and says what helps."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrix.broker.permission_commands import permissions_command_for
from orchestrix.broker.topology import dispatch_queue
from orchestrix.cli import devfile, endpoints, exit_codes, output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.api_request import api_at
from orchestrix.cli.banner import database as shown
from orchestrix.cli.doctor import database as database_checks
from orchestrix.cli.doctor.jobs import examined, facts
from orchestrix.cli.doctor.permissions import check_permissions, names_refused
from orchestrix.cli.doctor.queues import command_workers, dead_letters, deaths, queues, timeout_bursts
from orchestrix.cli.doctor.registry import calls, registry
from orchestrix.cli.doctor.result import FAIL, OK, WARN, CheckResult
from orchestrix.cli.doctor.shards import facts as shard_facts
from orchestrix.cli.doctor.shards import shards
from orchestrix.cli.doctor.stuck import stuck
from orchestrix.cli.doctor.versions import versions
from orchestrix.cli.endpoints import hidden
from orchestrix.cli.node_phase import phase_of
from orchestrix.cli.settings import chosen, idle, quieten, read
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError, DefinitionError, NotFound, OrchestrixError, Unavailable

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database
    from orchestrix.saga.catalog import Catalog

CHECK_TIMEOUT_S = 20.0
"""Seconds for one check: longer than the database and the broker take to fail when they are unreachable."""
BROKER_TIMEOUT_S = 5.0
WAIT = "wait until it has, and look again"
_TOKEN = "export ORCHESTRIX_API__TOKEN=SECRET, one of those in the ORCHESTRIX_API__TOKENS=NAME:SECRET of its node"
_AT_SIGN = "write an @ in a password as %40"


def doctor(arguments: argparse.Namespace) -> int:
    """`doctor`: one line a check; answers 1 if one of them failed."""
    try:
        settings = read(arguments)
    except OrchestrixError as wrong:
        findings = [CheckResult(FAIL, "settings", str(wrong))]
    else:
        quieten(settings, arguments)
        findings = _examine(settings, arguments)
    if arguments.output == "json":
        output.print_json({"checks": [finding.as_json() for finding in findings]})
    else:
        print("\n".join(_lines(findings)))
    return exit_codes.FAILED if any(finding.status == FAIL for finding in findings) else exit_codes.OK


def _examine(settings: Settings, arguments: argparse.Namespace) -> list[CheckResult]:
    folder = Path.cwd()
    found = _settings(settings)
    found += _modules(settings)
    health, answers = _api(settings, folder, named=chosen("api_url", arguments, settings))
    servers = asyncio.run(_servers(settings, folder))
    found += servers if (phase := phase_of(health)) is None else [_passing(one, phase) for one in servers]
    found += _sections(settings)
    return [*found, *answers]


def _passing(finding: CheckResult, phase: str) -> CheckResult:
    """For a node that is only starting or stopping: the finding with the advice to wait, not to start something."""
    if finding.status != WARN or finding.what not in ("queues", "jobs"):
        return finding
    return CheckResult(WARN, finding.what, f"{finding.detail} (the node is {phase})", WAIT)


async def _servers(settings: Settings, folder: Path) -> list[CheckResult]:
    both = await asyncio.gather(
        _guarded("database", lambda: _database(settings, folder)), _guarded("broker", lambda: _broker(settings, folder))
    )
    found = [finding for part in both for finding in part]
    if any(one.status == FAIL for one in found):
        return found
    found += await _guarded("versions", lambda: _versions(settings, folder))
    found += await _guarded("jobs", lambda: _jobs(settings, folder))
    return [*found, *await _guarded("shards", lambda: _shards(settings, folder))]


async def _guarded(what: str, check: Callable[[], Awaitable[list[CheckResult]]]) -> list[CheckResult]:
    """A check that raises is a finding, and no reason to leave out the others."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check()
    except OrchestrixError as wrong:
        return [CheckResult(FAIL, what, str(wrong), database_checks.fix_for(wrong) if what == "database" else None)]
    except TimeoutError:
        return [CheckResult(FAIL, what, f"no answer within {CHECK_TIMEOUT_S:g} s")]
    except Exception as wrong:
        return [CheckResult(FAIL, what, f"unexpected {type(wrong).__name__}: {wrong}")]


def _settings(settings: Settings) -> list[CheckResult]:
    strange = [CheckResult(WARN, "settings", sentence, "correct or unset it") for sentence in idle(settings)]
    file = settings.origin.file or "no orchestrix.toml"
    return strange or [CheckResult(OK, "settings", f"{file}; every ORCHESTRIX_ variable is known")]


def _modules(settings: Settings) -> list[CheckResult]:
    """Whether the modules that the settings name can be used here. What is wrong with one is reported once."""
    from orchestrix.bootstrap import load_catalog
    from orchestrix.worker.author_code import load_author_code
    from orchestrix.worker.module_loader import load_resources

    found: list[CheckResult] = []
    reading: list[tuple[str, Callable[[], object]]] = [
        ("resources", lambda: load_resources(settings.resources, settings.origin.folder)),
        ("sagas", lambda: load_catalog(settings)),
        ("workers", lambda: load_author_code(settings)),
        ("resources", lambda: _check_resources(settings)),
    ]
    for what, look in reading:
        try:
            look()
        except OrchestrixError as wrong:
            if str(wrong) not in (one.detail for one in found):
                found.append(CheckResult(FAIL, what, str(wrong)))
    return found


def _check_resources(settings: Settings) -> None:
    """Raises what a node that is to serve them raises."""
    from orchestrix.api.app import check
    from orchestrix.bootstrap import load_catalog
    from orchestrix.worker.module_loader import load_resources

    if wanted := load_resources(settings.resources, settings.origin.folder):
        check(wanted, load_catalog(settings))


async def _database(settings: Settings, folder: Path) -> list[CheckResult]:
    from orchestrix.bootstrap import open_database

    url = endpoints.database(settings, folder)
    if _at_signs(url):
        return [CheckResult(FAIL, "database", f"{hidden(url)}: the login has more than one @", _AT_SIGN)]
    database = open_database(settings.model_copy(update={"database_url": url}))
    try:
        await database.ping()
        schema = await _schema(database, url)
        if schema.status == FAIL:
            return [CheckResult(OK, "database", shown(url)), schema]
        found = [await database_checks.writes(database, shown(url)), schema]
        for check in (
            database_checks.clock_of,
            database_checks.copy_of,
            timeout_bursts,
            dead_letters,
            deaths,
            registry,
        ):
            found += await check(database)
        dev = devfile.read(folder)
        here = dev is not None and dev.database_url == url
        return [*found, *await calls(database, settings.registry, on_this_machine=here)]
    finally:
        await database.close()


def _at_signs(url: str) -> bool:
    """Whether the password seems to have an unescaped @, so that a part of it is taken for the host."""
    return urlsplit(url).netloc.count("@") > 1


async def _schema(database: Database, url: str) -> CheckResult:
    from orchestrix.bootstrap.factories import check_schema
    from orchestrix.errors import SchemaMismatch
    from orchestrix.persistence.schema import migrator

    try:
        await check_schema(database)
        drift = await migrator.check(url)
    except SchemaMismatch as wrong:
        return CheckResult(FAIL, "schema", str(wrong))
    if not drift:
        return CheckResult(OK, "schema", f"{migrator.HEAD} (head)")
    more = f" and {len(drift) - 1} more" if len(drift) > 1 else ""
    return CheckResult(FAIL, "schema", f"changed by hand: {drift[0]}{more}", "orchestrix db check")


async def _broker(settings: Settings, folder: Path) -> list[CheckResult]:
    from orchestrix.bootstrap import load_catalog, open_broker
    from orchestrix.broker.probe import accepts_messages

    url = endpoints.broker(settings, folder)()
    broker = open_broker(url, "orchestrix doctor")
    try:
        await broker.start()
        if not await broker.wait_connected(BROKER_TIMEOUT_S):
            why = broker.problem or f"no connection within {BROKER_TIMEOUT_S:g} s"
            fix = permissions_command_for(why) or (
                _AT_SIGN if _at_signs(url) else "start it, or correct ORCHESTRIX_BROKER_URL"
            )
            return [CheckResult(FAIL, "broker", f"{hidden(url)}: {why}", fix)]
        found = [CheckResult(OK, "broker", hidden(url))]
        try:
            catalog = load_catalog(settings)
        except (ConfigError, DefinitionError):  # which is reported already
            catalog = None
        read = [*catalog.commands, *catalog.event_queues] if catalog is not None else []
        if refused := await check_permissions(broker, url, read):
            return [*found, *refused]
        if not await accepts_messages(broker):  # nor do workers take any then: their absence says nothing
            why = broker.blocked or broker.problem or "it does not answer"
            return [CheckResult(WARN, "broker", f"takes no messages: {why}", "free its disk or memory")]
        if catalog is None:
            return found
        known = await _command_workers(settings, folder)
        return [*found, _sagas(catalog, settings), *await queues(broker, catalog, _handled(settings), *known)]
    finally:
        await broker.stop()


def _handled(settings: Settings) -> Collection[str] | None:
    """The commands that a worker started here has handlers for; None if its modules cannot be used."""
    from orchestrix.worker.author_code import load_author_code

    try:
        return load_author_code(settings).handlers.keys()
    except OrchestrixError:  # which is reported already
        return None


async def _command_workers(settings: Settings, folder: Path) -> list[dict[str, str]]:
    """As `queues` takes it; empty where the database or its schema cannot be used, which is reported elsewhere."""
    from orchestrix.bootstrap import open_database
    from orchestrix.bootstrap.factories import check_schema

    try:
        database = open_database(settings.model_copy(update={"database_url": endpoints.database(settings, folder)}))
    except OrchestrixError:
        return []
    try:
        await check_schema(database)
        return [await command_workers(database)]
    except OrchestrixError:
        return []
    finally:
        await database.close()


async def _versions(settings: Settings, folder: Path) -> list[CheckResult]:
    """Of the sagas of the database, which may be of other code than this."""
    from orchestrix.bootstrap import load_catalog, open_broker, open_database

    database = open_database(settings.model_copy(update={"database_url": endpoints.database(settings, folder)}))
    broker = open_broker(endpoints.broker(settings, folder)(), "orchestrix doctor")
    try:
        await broker.start()
        if not await broker.wait_connected(BROKER_TIMEOUT_S):
            return []  # which is reported already
        return await versions(database, broker, load_catalog(settings))
    except (ConfigError, DefinitionError):  # so is this
        return []
    finally:
        await broker.stop()
        await database.close()


async def _jobs(settings: Settings, folder: Path) -> list[CheckResult]:
    """Of those that the database knows, at a broker that is there."""
    from orchestrix.bootstrap import open_broker, open_database

    database = open_database(settings.model_copy(update={"database_url": endpoints.database(settings, folder)}))
    url = endpoints.broker(settings, folder)()
    broker = open_broker(url, "orchestrix doctor")
    try:
        known = await facts(database, settings.jobs.silent, settings.jobs.max_live)
        await broker.start()
        await broker.wait_connected(BROKER_TIMEOUT_S)
        refused = await names_refused(broker, url, [dispatch_queue(one) for one in known.not_started])
        return [*refused, *await examined(known, broker, url, folder, settings.jobs.max_live)]
    finally:
        await broker.stop()
        await database.close()


async def _shards(settings: Settings, folder: Path) -> list[CheckResult]:
    """Of services of shards; there is nothing to say while there are none."""
    from orchestrix.bootstrap import open_broker, open_database

    database = open_database(settings.model_copy(update={"database_url": endpoints.database(settings, folder)}))
    broker = open_broker(endpoints.broker(settings, folder)(), "orchestrix doctor")
    try:
        known = await shard_facts(database)
        await broker.start()
        await broker.wait_connected(BROKER_TIMEOUT_S)
        return await shards(known, broker, settings.shards.heartbeat_timeout)
    finally:
        await broker.stop()
        await database.close()


def _sagas(catalog: Catalog, settings: Settings) -> CheckResult:
    """Which sagas this command knows: a `dev` or a node may have been started with others."""
    from orchestrix.worker.module_loader import SAGAS, named_in

    names = ", ".join(saga.name for saga in catalog) or "none"
    return CheckResult(OK, "sagas", f"checked: {names} (from {named_in(SAGAS, settings.origin.folder)})")


def _sections(settings: Settings) -> list[CheckResult]:
    """Whether the settings of this machine fit the sections that the author's modules declare."""
    from orchestrix.worker.author_code import load_sections
    from orchestrix.worker.settings_sections import checked

    try:
        sections = load_sections(settings)
    except OrchestrixError:  # which is reported already
        return []
    found = [(section, *checked(values)) for section, values in sections]
    return [
        CheckResult(FAIL, section, wrong, fix) if wrong else CheckResult(OK, section, well)
        for section, well, wrong, fix in found
        if well or wrong
    ]


def _api(settings: Settings, folder: Path, *, named: bool) -> tuple[Any, list[CheckResult]]:
    """The health that the API reports, and the findings about it."""
    try:
        api = api_at(settings, folder)
        health = api.get("/health/ready", also=(503,))
        reasons = list(dict.fromkeys(_reasons(health) + _reasons(api.get("/health", also=(503,)))))
    except OrchestrixError as wrong:
        guessed = not named and not devfile.path_of(folder).exists()
        return None, [CheckResult(WARN if guessed else FAIL, "API", str(wrong))]
    if (phase := phase_of(health)) is not None:
        return health, [CheckResult(WARN, "API", f"{api.url} is {phase}: {'; '.join(reasons)}", WAIT)]
    texts = _health_result(api, reasons, _reasons(health, healthy=True))
    more = _let_in(api)
    return health, more if texts.status == OK and any(one.what == "API" for one in more) else [texts, *more]


def _health_result(api: ApiClient, reasons: list[str], noted: list[str]) -> CheckResult:
    if reasons:
        why = "; ".join(reasons)
        return CheckResult(FAIL, "API", f"{api.url} is not healthy: {why}", database_checks.fix_for_connections(why))
    return CheckResult(WARN, "API", f"{api.url}: {'; '.join(noted)}") if noted else CheckResult(OK, "API", api.url)


def _let_in(api: ApiClient) -> list[CheckResult]:
    """Whether it accepts the token, if it needs one, for its health needs none; and what is stuck."""
    try:
        with suppress(NotFound, Unavailable):
            return stuck(api)
    except OrchestrixError as wrong:
        fix = _TOKEN if "ORCHESTRIX_API__TOKEN" in str(wrong) else "orchestrix config show"
        return [CheckResult(FAIL, "API", f"{api.url}: {wrong}", fix)]
    return []


def _reasons(health: Any, *, healthy: bool = False) -> list[str]:
    """The reasons of its components that are not healthy, or that are and give one."""
    checks = health.get("checks", []) if isinstance(health, dict) else []
    return [
        f"{check.get('component')}: {check.get('reason') or 'no'}"
        for check in checks
        if bool(check.get("isHealthy")) is healthy and (check.get("reason") or not healthy)
    ]


def _lines(findings: list[CheckResult]) -> list[str]:
    widest = max(len(finding.what) for finding in findings)
    return [
        f"{output.paint_state(f'{finding.status:<4}')}  {finding.what:<{widest}}  {output.visible(finding.detail)}"
        + (f"  fix: {output.visible(finding.fix)}" if finding.fix else "")
        for finding in findings
    ]
