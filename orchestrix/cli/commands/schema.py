"""Schema commands: upgrade the database schema, show its revision, and check it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from orchestrix.cli import endpoints, exit_codes, output
from orchestrix.cli.settings import load, quieten
from orchestrix.config.settings import Settings
from orchestrix.persistence.schema import migrator


def upgrade(arguments: argparse.Namespace) -> int:
    """`db upgrade`: brings the schema to this version; nothing happens if it is there already.

    Answers 1 and says what to do if text would be kept or compared in another way than this version needs.
    """
    wrong = asyncio.run(migrator.upgrade(_url(_settings(arguments))))
    _print(arguments, f"the schema is at {migrator.HEAD}", "warnings", wrong)
    return exit_codes.FAILED if wrong else exit_codes.OK


def current(arguments: argparse.Namespace) -> int:
    """`db current`: which revision the database has, and which this version needs."""
    revision = asyncio.run(_current(_settings(arguments)))
    if arguments.output == "json":
        output.print_json({"current": revision, "head": migrator.HEAD})
    else:
        output.print_fields({"current": revision or "none", "head": migrator.HEAD})
    return exit_codes.OK


def check(arguments: argparse.Namespace) -> int:
    """`db check`: whether tables and columns are what this version needs; answers 1 and says what differs if not."""
    settings = _settings(arguments)
    asyncio.run(_check_revision(settings))
    differences = asyncio.run(migrator.check(_url(settings)))
    text = f"the schema is as it should be ({migrator.HEAD})"
    if differences:
        text = f"the schema says {migrator.HEAD}, but is not as this version made it: somebody has changed it by hand"
    _print(arguments, text, "differences", differences)
    return exit_codes.FAILED if differences else exit_codes.OK


def _print(arguments: argparse.Namespace, text: str, name: str, sentences: Sequence[str]) -> None:
    if arguments.output == "json":
        return output.print_json({"head": migrator.HEAD, name: list(sentences)})
    return print("\n".join([text, *(f"  {output.visible(sentence)}" for sentence in sentences)]))


async def _current(settings: Settings) -> str | None:
    from orchestrix.bootstrap import open_database

    database = open_database(settings)
    try:
        return await migrator.current(database)
    finally:
        await database.close()


async def _check_revision(settings: Settings) -> None:
    from orchestrix.bootstrap import open_database
    from orchestrix.bootstrap.factories import check_schema

    database = open_database(settings)
    try:
        await check_schema(database)
    finally:
        await database.close()


def _settings(arguments: argparse.Namespace) -> Settings:
    settings = load(arguments)
    quieten(settings, arguments)
    return settings.model_copy(update={"database_url": endpoints.database(settings, Path.cwd())})


def _url(settings: Settings) -> str:
    assert settings.database_url is not None
    return settings.database_url
