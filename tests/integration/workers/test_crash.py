"""Is nothing lost and nothing done twice when a worker is killed between its work and its word?"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.service import git_handlers

from .world import World

DOOMED = """
import asyncio, os, signal, sys
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.config.settings import Settings
from orchestrix.persistence.engine import Database
from sagas.app_provisioning import APP_PROVISIONING
from orchestrix.saga.catalog import Catalog
from orchestrix.worker.composition import assemble
from orchestrix.worker.commands.reporter import CommandReporter

def die(self, report):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(database_url, broker_url, root):
    CommandReporter.add = die
    broker = AmqpBroker(broker_url, name="doomed")
    await broker.start()
    origin = {"sections": {"git": {"root": root}}}
    settings = Settings.model_validate({"workers": ["workers"], "origin": origin})
    await assemble(settings, Database(database_url), broker, Catalog([APP_PROVISIONING]), ["cmd.createGitRepo"]).start()
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.req("S3-54")
async def test_work_whose_worker_was_killed_before_the_event_is_reported_by_another(
    world: World, sqlite_url: str, tmp_path: Path
) -> None:
    row, command = await world.app()
    await world.send(command)
    root = tmp_path / "repos"
    doomed = await asyncio.create_subprocess_exec(sys.executable, "-c", DOOMED, sqlite_url, world.url, str(root))
    async with asyncio.timeout(30.0):
        assert await doomed.wait() == -signal.SIGKILL
    repository = root / f"{row.id}.git"
    made = (repository / "refs" / "heads" / "main").read_text()
    await world.worker(git_handlers(root))
    (event,) = await world.events(1)
    assert (event["causationId"], event["data"]) == (command.id, {"repoUrl": repository.as_uri()})
    assert (repository / "refs" / "heads" / "main").read_text() == made
    assert sorted(one.name for one in root.iterdir()) == [".locks", repository.name]
