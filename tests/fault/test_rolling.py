"""Rolling deployments: nodes of other code move each instance by its own version, forwards and back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Final

import httpx
import pytest

from orchestrix.saga.definition import COMPLETED, FAILED
from tests.acceptance.system import Client
from tests.fault import changing
from tests.fault.changing import REFUSED, VERSIONS
from tests.fault.outside import all_in, rows
from tests.fault.world import NO_GIT, World
from tests.invariants import Ledger, Row, read
from tests.processes import Process
from tests.support import NO_TLS, eventually, free_port

CODE: Final = (1, 2, 3)
PATHS: Final = {
    (1, COMPLETED): ["cmd.pack", "cmd.send"],
    (2, COMPLETED): ["cmd.pack", "cmd.label", "cmd.send"],
    (3, COMPLETED): ["cmd.weigh", "cmd.label", "cmd.send"],
    (1, FAILED): ["cmd.pack", "cmd.unpack"],
    (2, FAILED): ["cmd.pack", "cmd.label", "cmd.unwrap"],
    (3, FAILED): ["cmd.weigh", "cmd.label", "cmd.untag"],
}
"""What is done for an instance of each version, by its end."""


def env_of(version: int | None) -> dict[str, str]:
    """The settings of a process with that code; with none of the saga if it is None."""
    if version is None:
        return NO_GIT
    return {**NO_GIT, "ORCHESTRIX_SAGAS": "changing", "CHANGING_CODE": f"{version}"}


def worker_env(version: int) -> dict[str, str]:
    """The settings of a worker with that code."""
    return {**env_of(version), "ORCHESTRIX_WORKERS": "changing"}


@dataclass
class Deployed:
    """A node that is started again with other code, at the same address."""

    world: World
    version: int
    port: int = field(default_factory=free_port)
    process: Process = field(init=False)

    def __post_init__(self) -> None:
        self._start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def ready(self) -> None:
        """Waits until it is ready."""
        await self.world.system.ready(self.url, deadline=40)

    async def deploy(self, version: int) -> None:
        """SIGTERM, and then the code of another version."""
        self.process.terminate()
        assert await self.process.exited(deadline=60) == 0, self.process.log_tail()
        self.version = version
        self._start()
        await self.ready()

    def _start(self) -> None:
        self.process, _ = self.world.system.node(port=self.port, **env_of(self.version))


class Load:
    """Starts instances at the nodes in turn until the block ends; those that a node on its way out refuses are asked
    for at the next one. Every tenth is one whose last step fails."""

    def __init__(self, urls: Sequence[str], rate: float) -> None:
        self.names: list[str] = []
        self._urls, self._pause = urls, 1 / rate
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Load:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended

    async def more(self, number: int) -> None:
        """Waits until so many more have been started."""
        wanted = len(self.names) + number
        deadline = 30 + 3 * number * self._pause
        await eventually(lambda: len(self.names) >= wanted, deadline=deadline, message=f"{number} more are started")

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=10, trust_env=False, verify=NO_TLS) as http:
            for n in count():
                name = f"{REFUSED}-{n}" if n % 10 == 9 else f"good-{n}"
                for turn in count(n):
                    if await _started(http, self._urls[turn % len(self._urls)], name):
                        break
                self.names.append(name)
                await asyncio.sleep(self._pause)


async def _started(http: httpx.AsyncClient, url: str, name: str) -> bool:
    """Whether the node has it now; one that was started there before without an answer is there already."""
    try:
        answer = await http.post(f"{url}/sagas/changing", json={"key": name, "createdBy": "ada"})
    except httpx.HTTPError:
        return False
    assert answer.status_code in (200, 409, 503), answer.text
    return answer.status_code != 503


@pytest.mark.req("X-3")
async def test_each_instance_ends_by_its_own_version_while_its_code_is_deployed_and_rolled_back(
    world: World, scale: Callable[[int, int], int]
) -> None:
    shutil.copy(Path(changing.__file__), world.system.folder)
    few = scale(15, 300)
    nodes = [Deployed(world, version) for version in CODE]
    await asyncio.gather(*(node.ready() for node in nodes))
    workers = [world.system.worker(**worker_env(version)) for version in CODE]
    await asyncio.gather(*(worker.wait_for_line("cmd.send", deadline=40) for worker in workers))
    async with Load([node.url for node in nodes], rate=scale(10, 40)) as load:
        await load.more(few)
        for node in nodes[:2]:
            await node.deploy(node.version + 1)
            await load.more(few)
        await nodes[0].deploy(3)
        await load.more(few)
        workers[0].terminate()
        assert await workers[0].exited(deadline=60) == 0, workers[0].log_tail()
        world.system.worker(**worker_env(3))
        for node in nodes:
            await node.deploy(1)
            await load.more(few)
    await all_in(world.system.database_url, VERSIONS[1], load.names, (COMPLETED, FAILED), deadline=60)
    ledger = await _all_well(world, load.names)
    seen = {(app.definition_version, app.state) for app in ledger.apps}
    assert seen == set(PATHS), f"every version has to come to every end: {seen}"


async def test_a_node_without_any_code_of_a_saga_drives_it_to_its_end(world: World) -> None:
    shutil.copy(Path(changing.__file__), world.system.folder)
    nodes = [Deployed(world, version) for version in CODE]
    await asyncio.gather(*(node.ready() for node in nodes))
    names: list[str] = []
    async with httpx.AsyncClient(timeout=10, trust_env=False, verify=NO_TLS) as http:
        for node in nodes:
            for name in (f"good-{node.version}", f"{REFUSED}-{node.version}", f"cancelled-{node.version}"):
                assert await _started(http, node.url, name)
                names.append(name)
    for node in nodes:
        node.process.terminate()
    for node in nodes:
        assert await node.process.exited(deadline=60) == 0, node.process.log_tail()
    _, url = world.system.node(port=None, **env_of(None))
    await world.system.ready(url)
    async with Client(url) as client:
        refused = await client.http.post("/sagas/changing", json={"key": "new", "createdBy": "ada"})
        assert refused.status_code == 404, refused.text
        for app in (await read(world.system.database_url, saga="changing")).apps:
            why = await client.http.get(f"/sagas/changing/{app.id}/why")
            assert VERSIONS[app.definition_version].steps[0].command in why.text, why.text
            if app.name.startswith("cancelled"):
                await _cancel(client, app.id)
    world.system.worker(**worker_env(3))
    await all_in(world.system.database_url, VERSIONS[1], names, (COMPLETED, FAILED), deadline=60)
    ledger = await _nothing_left(world, names)
    ended = {app.name: (app.definition_version, app.state) for app in ledger.apps}
    for version in CODE:
        assert ended[f"good-{version}"] == (version, COMPLETED)
        assert ended[f"{REFUSED}-{version}"] == ended[f"cancelled-{version}"] == (version, FAILED)


async def _cancel(client: Client, id: int) -> None:
    """Cancels it, and waits a moment only for the command that nobody has taken."""
    asked = await client.http.post(f"/sagas/changing/{id}/cancel", json={"reason": "not wanted"})
    assert asked.status_code == 200, asked.text
    if asked.json()["state"] != FAILED:
        soon = (datetime.now(UTC) + timedelta(seconds=0.3)).isoformat()
        moved = await client.http.patch(f"/sagas/changing/{id}/deadline", json={"at": soon, "reason": "nobody has it"})
        assert moved.status_code == 200, moved.text


async def _nothing_left(world: World, names: Sequence[str]) -> Ledger:
    """Waits until nothing is left to send or to apply, and checks I1 to I4 by the version of each instance."""

    async def nothing_left() -> Ledger:
        ledger = await read(world.system.database_url, saga="changing")
        ledger.check(names, saga=VERSIONS[1])
        return ledger

    return await eventually(nothing_left, deadline=20, every=0.2, message="nothing is left to do")


async def _all_well(world: World, names: Sequence[str]) -> Ledger:
    ledger = await _nothing_left(world, names)
    done = _effects(world.system.folder)
    for app in ledger.apps:
        _check(app, done.get(app.id, []))
    url = world.system.database_url
    moved = {(app.id, reason, "repeated") for app in ledger.apps for reason in app.reasons}
    ignored = await rows(url, "SELECT instance_id, type, reason FROM saga_notes WHERE kind = 'ignored'")
    # A node that ends leaves copies of what it has committed and not acknowledged.
    assert {tuple(one) for one in ignored} <= moved, "an event was ignored that has moved nothing"
    assert await rows(url, "SELECT queue, reason FROM dead_letters") == []
    return ledger


def _check(app: Row, done: Sequence[tuple[int, str]]) -> None:
    """It has had exactly the work of its version, once, and no step was tried again."""
    version = app.definition_version
    assert app.state == (FAILED if app.name.startswith(REFUSED) else COMPLETED), f"{app.name}: {app.reasons}"
    assert [command for _, command in done] == PATHS[version, app.state], f"{app.name} of version {version}: {done}"
    assert {named for named, _ in done} == {version}, f"{app.name} of version {version}: {done}"
    tried = [reason for reason in app.reasons if reason.startswith("retry ")]
    assert not tried, f"{app.name} was tried again: {app.reasons}"


def _effects(folder: Path) -> Mapping[int, list[tuple[int, str]]]:
    """What was done for each instance: the version that the command named, and the command."""
    found: dict[int, list[tuple[int, str]]] = {}
    for line in (folder / changing.EFFECTS).read_text().splitlines():
        id, version, command = line.split()
        found.setdefault(int(id), []).append((int(version), command))
    return found
