"""Does the README's plain pika worker do its share, with nothing of ours on its path?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from tests.acceptance.system import Client, System
from tests.documents import README, block
from tests.processes import Processes
from tests.servers.run import Run
from tests.support import eventually, free_port

Start = Callable[[str], "Registrar"]


class Registrar:
    """The script of the README as a process."""

    def __init__(self, run: Run, script: Path, broker_url: str, log: Path) -> None:
        self.log_path = log
        self.folder = script.parent
        argv = [sys.executable, str(script), broker_url]
        self.popen = run.spawn(argv, env={"PATH": os.environ["PATH"]}, cwd=script.parent, log=log)

    def registered(self) -> list[str]:
        """The apps that it says it has registered."""
        log = self.log_path.read_text()
        assert self.popen.poll() is None, log
        return [line.removeprefix("registering ") for line in log.splitlines() if line.startswith("registering ")]


@pytest.fixture
def registrar(server_run: Run, tmp_path: Path) -> Iterator[Start]:
    """Starts the README's script at the given broker."""
    script = tmp_path / "registrar.py"
    script.write_text(block(README, "python", "import pika"))
    started: list[Registrar] = []

    def start(broker_url: str) -> Registrar:
        started.append(Registrar(server_run, script, broker_url, tmp_path / f"registrar-{len(started)}.log"))
        return started[-1]

    yield start
    for one in started:
        server_run.kill(one.popen)


async def test_it_shares_the_queue_of_dev(processes: Processes, tmp_path: Path, registrar: Start) -> None:
    processes.spawn("dev", "--port", str(free_port()), cwd=tmp_path).wait_for_line_sync("^Ready in")
    dev = json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())
    script = registrar(dev["brokerUrl"])
    created: list[int] = []
    async with Client(dev["apiUrl"]) as client:

        async def has_its_share() -> bool:
            created.append((await client.created(f"app-{len(created)}"))["id"])
            await client.completed(created[-1])
            return bool(script.registered())

        await eventually(has_its_share, deadline=30, message="the script registers an app")
        names = [(await client.app(one))["data"]["executorGroup"] for one in created]
    assert names == [f"app-{number}" for number in range(len(created))]


@pytest.mark.servers
async def test_it_alone_registers_on_rabbitmq(system: System, registrar: Start) -> None:
    _, url = system.node()
    worker = system.worker("-q", "cmd.createGitRepo", ORCHESTRIX_GIT__PROVIDER="simulated")
    await worker.wait_for_line("cmd.createGitRepo")
    await system.ready(url)
    script = registrar(system.broker_url)
    async with Client(url) as client:
        apps = [await client.created(f"app-{number}") for number in range(5)]
        for app in apps:
            done = await client.completed(app["id"], deadline=60)
            assert done["data"] == {"executorGroup": app["appName"]}
            assert done["version"] == 4
    assert sorted(set(script.registered())) == [app["appName"] for app in apps]
    await undoes(system.broker_url, script)


async def undoes(broker_url: str, script: Registrar) -> None:
    """The script undoes what has the key of the command, and nothing else; nothing at all is fine too."""
    made = script.folder / "registered"
    first, *rest = sorted(mark.name for mark in made.iterdir())
    channel = pika.BlockingConnection(pika.URLParameters(broker_url)).channel()
    for key in (first, first, "nobody's"):
        command = {
            "id": "u",
            "type": "cmd.unregisterApp",
            "appId": 1,
            "saga": "app",
            "correlationId": "c",
            "effectKey": key,
        }
        channel.basic_publish("orchestrator.commands", "cmd.unregisterApp", json.dumps(command).encode())
    await eventually(lambda: sorted(mark.name for mark in made.iterdir()) == rest, deadline=20)
    channel.connection.close()
