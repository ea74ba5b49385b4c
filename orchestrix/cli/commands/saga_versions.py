"""Migrate: `sagas migrate`, which moves the live instances of older versions of a saga to a later one."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from orchestrix.cli import endpoints, exit_codes, output
from orchestrix.cli.api_request import reason_of
from orchestrix.cli.settings import load, quieten
from orchestrix.config.settings import Settings
from orchestrix.engine.maintenance.version_migration import MigrationRequest, MigrationResult, RefusedInstance
from orchestrix.engine.maintenance.version_migration import migrate as migrate_all
from orchestrix.errors import Invalid
from orchestrix.saga.versions.migration import NameMapping

NODE_WAIT_TIMEOUT_S: Final = 60.0
_ACTOR: Final = "sagas migrate"
_SHOWN: Final = 5
"""Ids of instances that are shown for each reason; `-o json` has all."""


def migrate(arguments: argparse.Namespace) -> int:
    """`sagas migrate NAME --to N`: answers 1 if one of them was refused."""
    asked = _asked(arguments)
    settings = load(arguments)
    quieten(settings, arguments)
    settings = settings.model_copy(update={"database_url": endpoints.database(settings, Path.cwd())})
    result = asyncio.run(_migrate(settings, asked))
    if arguments.output == "json":
        about = {"saga": asked.saga, "to": asked.to, "dryRun": asked.dry_run, "migrated": result.migrated}
        output.print_json({**about, "refused": [asdict(one) for one in result.refused]})
    else:
        _print(asked, result)
    return exit_codes.FAILED if result.refused else exit_codes.OK


def _asked(arguments: argparse.Namespace) -> MigrationRequest:
    if arguments.wait_s is not None and not arguments.wait:
        raise Invalid("--for says how long --wait waits: add --wait, or leave --for out")
    return MigrationRequest(
        saga=arguments.saga,
        to=arguments.to,
        maps=NameMapping(_once("--map", arguments.map), _once("--map-step", arguments.map_step)),
        actor=_ACTOR,
        reason=reason_of(arguments),
        wait_s=(arguments.wait_s or NODE_WAIT_TIMEOUT_S) if arguments.wait else 0.0,
        dry_run=arguments.dry_run,
    )


def _once(flag: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    names = dict(pairs)
    twice = sorted({old for old, new in pairs if names[old] != new})
    if twice:
        raise Invalid(f"{flag} {twice[0]} has two new names: leave one out")
    return names


async def _migrate(settings: Settings, asked: MigrationRequest) -> MigrationResult:
    from orchestrix.bootstrap import load_catalog, open_database
    from orchestrix.bootstrap.factories import check_schema

    database = open_database(settings)
    try:
        await database.ping()
        await check_schema(database)
        return await migrate_all(database, load_catalog(settings), asked)
    finally:
        await database.close()


def _print(asked: MigrationRequest, result: MigrationResult) -> None:
    would = "would be " if asked.dry_run else ""
    print(f"{result.migrated} {would}moved to version {asked.to} of {asked.saga}, {len(result.refused)} refused")
    if result.refused:
        output.print_table(("REFUSED", "VERSION", "WHY", "IDS"), list(_rows(result.refused)))


def _rows(refused: Sequence[RefusedInstance]) -> Iterable[tuple[int, int, str, str]]:
    """One line for each version and reason."""
    found: dict[tuple[int, str], list[int]] = {}
    for one in refused:
        found.setdefault((one.version, one.reason), []).append(one.id)
    for (version, reason), ids in sorted(found.items()):
        more = ", …" if len(ids) > _SHOWN else ""
        yield len(ids), version, reason, ", ".join(map(str, ids[:_SHOWN])) + more
