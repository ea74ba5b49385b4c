"""Do workers do the steps of the app saga over a real database and a real broker?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from orchestrix import Command, Context
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import COMMANDS
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker
from tests.service import CREATE, git_handlers, registration_handlers
from tests.support import eventually

from .world import World


@pytest.mark.req("S3-5", "S3-19", "S3-21", "DC-5")
async def test_the_repository_is_made_while_the_app_is_initiated(world: World, tmp_path: Path) -> None:
    await world.worker(git_handlers(tmp_path / "repos"))
    row, command = await world.app("shop")
    await world.send(command)
    (event,) = await world.events(1)
    url = (tmp_path / "repos" / f"{row.id}.git").as_uri()
    assert (event["type"], event["appId"], event["data"]) == ("evt.gitRepoCreated", row.id, {"repoUrl": url})
    assert (event["correlationId"], event["causationId"]) == ("c-shop", command.id)
    assert (tmp_path / "repos" / f"{row.id}.git" / "HEAD").exists()


@pytest.mark.req("S3-25", "DC-5")
async def test_the_app_is_registered_while_it_is_registering(world: World) -> None:
    await world.worker(registration_handlers())
    row, command = await world.app("shop", state="REGISTERING")
    await world.send(command)
    (event,) = await world.events(1)
    assert (event["type"], event["appId"]) == ("evt.appRegistered", row.id)
    assert event["data"] == {"executorGroup": "shop"}


@pytest.mark.req("S3-19", "S3-25", "S3-42")
async def test_nothing_is_done_for_a_saga_that_does_not_wait_for_it(world: World, tmp_path: Path) -> None:
    repos, register = tmp_path / "repos", registration_handlers()
    both = HandlerTable([*git_handlers(repos).items(), *register.items()])
    worker = await world.worker(both)
    _, first = await world.app("late")
    row, second = await world.app("early", state="REGISTERING")
    stale = Command(**{name: getattr(first, name) for name in Command.__slots__} | {"app_id": row.id})
    await world.send(stale, stale)
    await eventually(lambda: worker.counts.dropped + worker.counts.joined == 2, deadline=5.0)
    assert list(repos.iterdir()) == []
    await world.send(second)
    assert [event["type"] for event in await world.events(1)] == ["evt.appRegistered"]


@pytest.mark.req("S3-20", "S3-26")
async def test_the_specifications_simulated_work_takes_a_second_and_a_half(world: World) -> None:
    git = git_handlers(provider="simulated")
    register = registration_handlers("simulated")
    await world.worker(HandlerTable([*git.items(), *register.items()]))
    _, first = await world.app("one")
    _, second = await world.app("two", state="REGISTERING")
    began = time.monotonic()
    await world.send(first, second)
    events = await world.events(2)
    assert 1.5 <= time.monotonic() - began < 4.5
    assert sorted(event["type"] for event in events) == ["evt.appRegistered", "evt.gitRepoCreated"]


def counting(done: Counter[int], gate: asyncio.Event) -> HandlerTable:
    async def handler(context: Context, command: Command) -> None:
        done[context.app_id] += 1
        await gate.wait()

    return HandlerTable([(CREATE, handler)])


@pytest.mark.req("S3-49")
async def test_workers_share_the_commands_and_each_is_done_once(world: World) -> None:
    done: list[Counter[int]] = [Counter(), Counter()]
    gate = asyncio.Event()
    workers = [await world.worker(counting(one, gate), concurrency=100, prefetch=100) for one in done]
    commands = [(await world.app(f"app {n}"))[1] for n in range(30)]
    await world.send(*commands)
    await eventually(lambda: done[0] and done[1], deadline=5.0, message="both take part")
    gate.set()
    events = await world.events(30)
    assert Counter(event["appId"] for event in events) == Counter(command.app_id for command in commands)
    assert done[0] + done[1] == Counter(command.app_id for command in commands)
    await eventually(lambda: sum(one.counts.done for one in workers) == 30, deadline=5.0)


@pytest.mark.req("S3-49", "S3-54")
async def test_what_one_worker_leaves_undone_another_does(world: World) -> None:
    done: list[Counter[int]] = [Counter(), Counter()]
    never, at_once = asyncio.Event(), asyncio.Event()
    at_once.set()
    await world.worker(counting(done[0], never), stop_timeout=0.1)
    _, command = await world.app()
    await world.send(command)
    await eventually(lambda: done[0], deadline=5.0)
    await world.worker(counting(done[1], at_once))
    await world.brokers[0].stop()
    assert [event["causationId"] for event in await world.events(1)] == [command.id]
    assert done[1] == Counter({command.app_id: 1})


@pytest.mark.req("S3-54")
async def test_work_that_outlives_its_connection_is_reported_once(world: World) -> None:
    done: Counter[int] = Counter()
    gate = asyncio.Event()
    worker = await world.worker(counting(done, gate))
    _, command = await world.app()
    await world.send(command)
    await eventually(lambda: done, deadline=5.0)
    await _cut(worker)
    await eventually(lambda: worker.counts.joined == 1, deadline=5.0)
    gate.set()
    assert len(await world.events(1)) == 1
    await eventually(lambda: worker.counts.done == 1, deadline=5.0)
    assert done == Counter({command.app_id: 1})
    await worker.stop()
    assert await world.broker.message_count(CREATE) == (0, 0), "a stop gives nothing back: it was acknowledged"


async def _cut(worker: Worker) -> None:
    """Closes the channel by which the worker's commands came."""
    assert worker._parts is not None
    await worker._parts._in_flight.consumer.reopen()


@pytest.mark.parametrize("body", [b"\xff", b"null", b"x" * (2 * 1024 * 1024)], ids=["not-utf8", "null", "2 MB"])
async def test_rubbish_goes_to_the_dead_letters_and_the_others_flow(world: World, body: bytes) -> None:
    gate = asyncio.Event()
    gate.set()
    worker = await world.worker(counting(Counter(), gate))
    _, command = await world.app()
    await world.broker.publish([Outgoing(COMMANDS, CREATE, body, "rubbish")])
    await world.send(command)
    assert len(await world.events(1)) == 1
    letters = await world.broker.consume([f"{CREATE}.dead"], 1)
    (letter,) = await letters.receive(1)
    assert (letter.body, letter.message_id) == (body, "rubbish")
    assert letter.headers["x-reason"]
    await eventually(lambda: (worker.counts.done, worker.counts.dead) == (1, 1), deadline=5.0)
