"""Can somebody at a shell find a message that could not be handled, mend it, and see its saga complete?"""

from __future__ import annotations

import json
from typing import Any

from tests.acceptance.plain_pika import PikaWorker, succeed
from tests.acceptance.system import EVERY_DATABASE, Client, System
from tests.support import eventually


class Shell:
    """`orchestrix …`, which asks the API at `url`."""

    def __init__(self, system: System, url: str) -> None:
        self._system = system
        self._env = system.env(ORCHESTRIX_API_URL=url)

    async def json(self, *words: str, code: int = 0) -> Any:
        """What a command says with `-o json`."""
        done = await self._system.processes.run_async(*words, "-o", "json", env=self._env)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    async def text(self, *words: str) -> str:
        """What a command says to people."""
        done = await self._system.processes.run_async(*words, env=self._env)
        return done.stdout


def careless(channel: Any, command: dict[str, Any]) -> None:
    """Answers the first step with a number where there must be a text."""
    event = {name: command[name] for name in ("appId", "correlationId")}
    event |= {"causationId": command["id"], "data": {"repoUrl": 5}}
    channel.basic_publish("orchestrator.events", "evt.gitRepoCreated", json.dumps(event).encode())


@EVERY_DATABASE
async def test_a_letter_is_found_mended_and_sent_again(system: System) -> None:
    _, url = system.node()
    await system.ready(url)
    shell = Shell(system, url)
    with PikaWorker(system.broker_url, careless, ("cmd.createGitRepo",)):
        async with Client(url) as client:
            app = await client.created("billing")
            letter = await _letter(shell)
    assert (letter["queue"], letter["appId"], letter["redriven"]) == ("evt.gitRepoCreated", app["id"], 0)
    assert letter["reason"].startswith("bad-output: ")
    assert "evt.gitRepoCreated: 1 bad-output" in await shell.text("doctor")
    messages = await shell.json("apps", "messages", str(app["id"]))
    assert [one["deadLetter"] for one in messages["items"] if one["status"] == "dead"] == [letter["id"]]

    body = (await shell.json("dlq", "show", letter["id"]))["body"]
    mended = json.dumps({**body, "data": {"repoUrl": "file:///r"}})
    assert (await shell.json("dlq", "edit", letter["id"], "--body", mended))["editedAt"]
    assert (await shell.json("dlq", "redrive", "--all", "--dry-run"))["matched"] == 1
    sent = await shell.json("dlq", "redrive", letter["id"])
    assert await shell.json("dlq", "redrive", letter["id"]) == sent
    with PikaWorker(system.broker_url, succeed, ("cmd.registerApp",)) as worker:
        async with Client(url) as client:
            done = await client.completed(app["id"])
    assert (done["version"], done["data"]["repoUrl"], len(worker.commands)) == (4, "file:///r", 1)
    assert (await shell.json("dlq", "list"))["items"] == []
    assert (await shell.json("dlq", "drop", letter["id"]))["id"] == letter["id"]
    await shell.json("dlq", "show", letter["id"], code=3)


async def _letter(shell: Shell) -> dict[str, Any]:
    """The one letter, as soon as it is there."""

    async def there() -> Any:
        return (await shell.json("dlq", "list"))["items"]

    found: list[dict[str, Any]] = await eventually(there, deadline=20, every=0.2, message="a dead letter is listed")
    (letter,) = found
    return letter
