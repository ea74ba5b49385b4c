"""What becomes of sagas that go wrong, and what can a person do about them?"""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from orchestrix.saga.definition import COMPLETED, FAILED, TERMINAL
from tests import invariants
from tests.acceptance.plain_pika import PikaWorker, fail, succeed
from tests.acceptance.system import Client, System, create_all
from tests.fault import brief
from tests.fault.crashing import At, died
from tests.processes import Process
from tests.support import eventually
from tests.taps import COMMANDS, Tap

GIT = ("-q", "cmd.createGitRepo", "-q", "cmd.deleteGitRepo")
REGISTER = "cmd.registerApp"
WISHES = (400, 900)
"""Milliseconds after which the foreign worker asks to be asked again."""
PLACES = 10
"""Commands that a worker does at once: so many half-made repositories may a killed one leave."""


@pytest.mark.req("S3-32", "S3-33")
@pytest.mark.parametrize("database", ["postgres_url", "mariadb_url"])
async def test_a_foreign_worker_fails_a_step_for_good(
    system_on: Callable[[str, str], System], rabbitmq_url: str, database: str, request: pytest.FixtureRequest
) -> None:
    system = system_on(request.getfixturevalue(database), rabbitmq_url)
    tap = Tap(rabbitmq_url)
    _, url = system.node()
    await system.ready(url)
    system.worker(*GIT)
    times: list[float] = []

    def answer(channel: Any, command: dict[str, Any]) -> None:
        times.append(time.monotonic())
        wish = WISHES[command["attempt"] - 1] if command["attempt"] <= len(WISHES) else None
        fail(channel, command, retryable=wish is not None, after_ms=wish)

    with PikaWorker(rabbitmq_url, answer, (REGISTER,)) as worker:
        async with Client(url) as client:
            app = await client.created("unlucky")
            ledger = await system.all_ended(["unlucky"], deadline=20)
            history = await client.history(app["id"])
            why = (await client.http.get(f"/apps/{app['id']}/why")).json()
    assert [command["attempt"] for command in worker.commands] == [1, 2, 3]
    for wish, first, second in zip(WISHES, times, times[1:], strict=False):
        assert wish / 1000 - 0.05 < second - first < wish / 1000 + 2, (wish, second - first)
    told = "evt.stepFailed: DiskFull: no space left"
    assert [(row["toState"], row["reason"]) for row in history] == [
        ("APP_INITIATED", "created"),
        ("GIT_REPO_CREATED", "evt.gitRepoCreated"),
        ("REGISTERING", "immediate"),
        ("REGISTERING", f"retry 2: {told}"),
        ("REGISTERING", f"retry 3: {told}"),
        ("COMPENSATING", told),
        ("COMPENSATING", "undone createGitRepo"),
        ("FAILED", f"undone: {told}"),
    ]
    assert (why["blocker"], "no space left" in why["sentence"]) == ("failed", True)
    ledger.check_ended(["unlucky"], FAILED)
    ledger.check_effects(system.repos)
    ledger.check_wire(tap.read())
    assert [path.name for path in (system.repos / ".archive").iterdir()] == [f"{app['id']}-1.git"]


async def test_a_saga_that_is_cancelled_at_its_last_step_is_undone_in_reverse(system: System) -> None:
    tap = Tap(system.broker_url)
    _, url = system.node()
    await system.ready(url)
    system.worker(*GIT, "-q", "cmd.unregisterApp")
    cancelled = threading.Event()

    def answer(channel: Any, command: dict[str, Any]) -> None:
        assert cancelled.wait(20)
        succeed(channel, command)

    with PikaWorker(system.broker_url, answer, (REGISTER,)) as worker:
        async with Client(url) as client:
            app = await client.created("unwanted")
            await eventually(lambda: worker.taken.is_set(), deadline=20)
            preview = await client.http.post(f"/apps/{app['id']}/cancel?dryRun=true", json={"reason": "a mistake"})
            assert preview.json()["undo"] == ["registerApp", "createGitRepo"]
            answered = await client.http.post(f"/apps/{app['id']}/cancel", json={"reason": "a mistake"})
            assert answered.status_code == 200, answered.text
            cancelled.set()
            ledger = await system.all_ended(["unwanted"], deadline=20)
    ledger.check_ended(["unwanted"], FAILED)
    ledger.check_effects(system.repos)
    seen = tap.read()
    ledger.check_wire(seen)
    sent = list(dict.fromkeys(one.routing_key for one in seen if one.exchange == COMMANDS))
    assert sent == ["cmd.createGitRepo", REGISTER, "cmd.unregisterApp", "cmd.deleteGitRepo"]
    assert ledger.apps[0].reasons[3:] == [
        "cancel: a mistake",
        "evt.appRegistered",
        "undone registerApp",
        "undone createGitRepo",
        "undone: cancel: a mistake",
    ]


async def test_what_a_killed_worker_did_and_a_foreign_one_fails_is_undone(system: System) -> None:
    """The foreign one says that it is not sure: the step may have been done before."""
    tap = Tap(system.broker_url)
    _, url = system.node()
    await system.ready(url)
    system.worker(*GIT, "-q", "cmd.unregisterApp")
    at = At("worker.after_effect", 1)
    doomed = system.worker("-q", REGISTER, **at.env)
    async with Client(url) as client:
        app = await client.created("half-done")
        await died(doomed, at)
        assert (await system.ledger()).groups, "the killed worker had made a group"

        def answer(channel: Any, command: dict[str, Any]) -> None:
            fail(channel, command, retryable=False, unsure=worker.redelivered)

        with PikaWorker(system.broker_url, answer, (REGISTER,)) as worker:
            ledger = await system.all_ended(["half-done"], deadline=20)
        history = await client.history(app["id"])
    ledger.check_ended(["half-done"], FAILED)
    ledger.check_effects(system.repos)
    ledger.check_wire(tap.read())
    assert [row["reason"] for row in history][-3:-1] == ["undone registerApp", "undone createGitRepo"]


async def test_a_command_that_kills_its_workers_fails_its_saga_alone(
    system: System, scale: Callable[[int, int], int]
) -> None:
    shutil.copy(Path(brief.__file__), system.folder)
    deaths = scale(8, 19)
    env = {
        "ORCHESTRIX_SAGAS": "brief",
        "ORCHESTRIX_WORKERS": "brief",
        "ORCHESTRIX_WORKER__MAX_DELIVERIES": str(deaths),
        "BRIEF_SECONDS": "60",
    }
    tap = Tap(system.broker_url)
    _, url = system.node(port=None, **env)
    await system.ready(url)
    names = [brief.DEADLY, *(f"innocent-{n}" for n in range(100))]
    async with Client(url) as client:
        asked = [{"key": name, "createdBy": "ada"} for name in names]
        started = await asyncio.gather(*(client.http.post("/sagas/brief", json=one) for one in asked))
        assert {one.status_code for one in started} == {200}
        kills = await _work_until_all_end(system, env)
        why = (await client.http.get(f"/sagas/brief/{started[0].json()['id']}/why")).json()
    assert deaths <= kills <= deaths + 1, "it is tried alone once, if the last one may have died of another command"
    ledger = await invariants.read(system.database_url, saga="brief")
    ledger.check(names, saga=brief.BRIEF)
    ledger.check_wire(tap.read(), saga=brief.BRIEF)
    (deadly,) = ledger.named(brief.DEADLY)
    assert deadly.state == FAILED
    assert f"WorkerCrashed: {kills} workers died while processing cmd.grab" in deadly.reasons[-1]
    assert "WorkerCrashed" in why["sentence"]
    assert {app.state for app in ledger.apps if app is not deadly} == {COMPLETED}
    left = {path.name for path in (system.folder / brief.GRABBED).iterdir()}
    assert left == {str(app.id) for app in ledger.apps if app is not deadly}, "I5: what it left is undone"


async def _work_until_all_end(system: System, env: dict[str, str]) -> int:
    """Starts a worker again after each death; how many have died."""
    kills = 0
    doomed = ("-q", "cmd.grab", "-q", "cmd.drop")
    worker = system.worker(*doomed, **env)
    system.worker("-q", "cmd.tell", **env)

    async def ended() -> bool:
        nonlocal kills, worker
        if worker.returncode is not None:
            assert worker.returncode == -9, worker.log_tail()
            kills += 1
            worker = system.worker(*doomed, **env)
        ledger = await invariants.read(system.database_url, saga="brief")
        return all(app.state in (COMPLETED, FAILED) for app in ledger.apps) and not ledger.outbox

    await eventually(ended, deadline=60 + 10 * int(env["ORCHESTRIX_WORKER__MAX_DELIVERIES"]), every=0.1)
    return kills


class Hand:
    """Somebody who asks for this and that, of sagas that are drawn."""

    def __init__(self, client: Client, ids: list[int], chance: random.Random) -> None:
        self._client = client
        self._ids = ids
        self._chance = chance
        self.answers: Counter[str] = Counter()

    async def ask(self) -> None:
        """One request; every answer says what has become of it."""
        verb = self._chance.choice(VERBS)
        path = f"/apps/{self._chance.choice(self._ids)}"
        body: dict[str, Any] = {"reason": "as it comes"}
        method = "POST"
        match verb:
            case "edit":
                method, body["data"] = "PATCH", {"colour": self._chance.choice(["red", "blue", None])}
            case "set-deadline":
                method, path = "PATCH", f"{path}/deadline"
                body["at"] = (datetime.now(UTC) + timedelta(seconds=self._chance.uniform(0.5, 5))).isoformat()
            case "cancel-deadline":
                method, path = "DELETE", f"{path}/deadline"
            case _:
                path = f"{path}/{verb}"
        answer = await self._client.http.request(method, path, json=body)
        assert answer.status_code in (200, 409), (verb, answer.text)
        self.answers[f"{verb} {answer.status_code}"] += 1

    async def help(self, app: invariants.Row, idle: bool) -> None:
        """What a person does about a saga that is blocked, or that has been waiting for long."""
        path, body = f"/apps/{app.id}", {"reason": "go on"}
        if (verb := HELP.get(app.blocker or "")) is not None:
            answer = await self._client.http.post(f"{path}/{verb}", json=body)
        elif idle:  # for an answer that nobody gives, perhaps without a deadline
            at = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
            answer = await self._client.http.patch(f"{path}/deadline", json={**body, "at": at})
        else:
            return
        assert answer.status_code in (200, 409), answer.text


VERBS: Final = (
    *("retry", "retry", "skip", "pause", "pause", "resume", "resume", "cancel", "terminate"),
    *("edit", "set-deadline", "cancel-deadline"),
)
PATIENCE: Final = 5.0
"""Seconds without a change after which somebody looks after a saga."""
HELP: Final = {"paused": "resume", "undo_failed": "retry", "unsendable": "retry"}


@pytest.mark.parametrize("database", ["postgres_url", "mariadb_url"])
async def test_people_step_in_everywhere_while_workers_run_and_die(
    system_on: Callable[[str, str], System],
    rabbitmq_url: str,
    database: str,
    request: pytest.FixtureRequest,
    scale: Callable[[int, int], int],
) -> None:
    system = system_on(request.getfixturevalue(database), rabbitmq_url)
    tap = Tap(rabbitmq_url)
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = [f"app-{n}" for n in range(scale(60, 500))]
    _, url = system.node()
    await system.ready(url)
    async with Client(url) as client, _disturbed(system) as killed, _sometimes_failing(rabbitmq_url, chance):
        assert await create_all([client], names) == names
        ids = [app.id for app in (await system.ledger()).apps]
        hand = Hand(client, ids, chance)
        for _ in range(len(names)):
            await asyncio.gather(*(hand.ask() for _ in range(4)))
        print(dict(hand.answers))

        await _helped(system, hand)
    ledger = await system.all_ended(names, deadline=30)
    ledger.check(names)
    ledger.check_effects(system.repos, drafts=PLACES * len(killed))
    ledger.check_wire(tap.read())
    assert {COMPLETED, FAILED} == {app.state for app in ledger.apps}
    assert sum(app.state == FAILED and not app.stopped for app in ledger.apps) > 0, "some were undone whole"


async def _helped(system: System, hand: Hand) -> None:
    """Waits until every saga has ended, with somebody's help where nothing moves."""
    versions: dict[int, tuple[int, float]] = {}

    async def all_ended() -> bool:
        live = [app for app in (await system.ledger()).apps if app.state not in TERMINAL]
        now = time.monotonic()
        for app in live:
            version, since = versions.get(app.id, (0, now))
            versions[app.id] = app.version, now if version != app.version else since
            await hand.help(app, now - versions[app.id][1] > PATIENCE)
        return not live

    await eventually(all_ended, deadline=120, every=0.5, message="every saga ends")


@asynccontextmanager
async def _disturbed(system: System) -> AsyncIterator[Sequence[Process]]:
    """Two workers, of which one is killed and started again, and the other is slow: it stands still now and then.

    Gives those that were killed so far.
    """
    doomed, slow = system.worker(), system.worker()
    killed: list[Process] = []

    async def disturb() -> None:
        nonlocal doomed
        while True:
            await asyncio.sleep(1.0)
            await _stands_still(slow)
            doomed.kill9()
            killed.append(doomed)
            doomed = system.worker()

    task = asyncio.create_task(disturb())
    try:
        yield killed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        slow.resume()


async def _stands_still(worker: Process) -> None:
    worker.pause()
    try:
        await asyncio.sleep(0.7)
    finally:
        worker.resume()


@asynccontextmanager
async def _sometimes_failing(broker_url: str, chance: random.Random) -> AsyncIterator[None]:
    """A third worker that takes a share of the registrations, and fails each, also what a killed one had begun."""

    def answer(channel: Any, command: dict[str, Any]) -> None:
        fail(channel, command, retryable=chance.random() < 0.7, after_ms=50, unsure=worker.redelivered)

    with PikaWorker(broker_url, answer, (REGISTER,)) as worker:
        yield
