"""Clone reset: makes a copy of a database an installation of its own, by hand."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from pathlib import Path

from orchestrix.cli import endpoints, exit_codes, output
from orchestrix.cli.settings import load, quieten
from orchestrix.config.settings import Settings
from orchestrix.engine.maintenance.clone_reset import CloneResetResult, wait_until_unused
from orchestrix.engine.maintenance.clone_reset import reset as reset_clone

_NEXT = "each live saga is held (blocker `cloned`) until it is resumed or cancelled: `orchestrix stuck` lists them"


def reset(arguments: argparse.Namespace) -> int:
    """`db clone-reset`: gives a copy of a database an id of its own, and holds its live sagas."""
    settings = load(arguments)
    quieten(settings, arguments)
    settings = settings.model_copy(update={"database_url": endpoints.database(settings, Path.cwd())})
    done = asyncio.run(_reset(settings, wait=not arguments.yes))
    if arguments.output == "json":
        output.print_json(asdict(done))
        return exit_codes.OK
    output.print_fields(asdict(done))
    print(_NEXT)
    return exit_codes.OK


async def _reset(settings: Settings, *, wait: bool) -> CloneResetResult:
    from orchestrix.bootstrap import open_database
    from orchestrix.bootstrap.factories import check_revision

    database = open_database(settings)
    try:
        await check_revision(database)
        await database.ping()
        if wait:
            await wait_until_unused(database, settings.cluster.dead, exit_codes.warn)
        return await reset_clone(database)
    finally:
        await database.close()
