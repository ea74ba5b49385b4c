"""How is a process brought to one of its crash points, and how do the others go on from there?

Each script starts a system in which one process is armed, waits until that has died at its point, starts it again
without, and leaves the rest to them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pika
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.api.idempotency import REPLAYED
from tests.acceptance.plain_pika import EVENTS as EVENT_OF
from tests.acceptance.plain_pika import UNDOS
from tests.acceptance.system import Client, System
from tests.invariants import Ledger
from tests.processes import Process, Processes
from tests.support import eventually
from tests.taps import COMMANDS, EVENTS, Seen, Tap, channel, ready

WORK: Final = (*EVENT_OF, *UNDOS, *EVENT_OF.values(), *UNDOS.values(), "evt.stepFailed")
APPS: Final = 10
POISON: Final = 3


@dataclass(frozen=True)
class At:
    """The point at which a process is to die, and which of its passages is the last."""

    point: str
    passage: int

    def __str__(self) -> str:
        return f"{self.point}:{self.passage}"

    @property
    def env(self) -> dict[str, str]:
        """What arms a process."""
        return {"ORCHESTRIX_TESTING": "1", "ORCHESTRIX_CRASH_AT": str(self)}


class Rig(System):
    """A system whose claims run out after a second, so that nobody waits long for what a dead process has claimed."""

    def __init__(self, processes: Processes, folder: Path, database_url: str, broker_url: str, **settings: str) -> None:
        super().__init__(processes, folder, database_url, broker_url)
        self._settings = settings
        self.tap = Tap(broker_url)
        self.rounds = 0
        self.names: tuple[str, ...] = ()
        """The apps of this round."""

    def next_round(self) -> None:
        """New names; nothing runs any more."""
        self.processes.close()
        self.next_names(APPS)

    def next_names(self, count: int) -> None:
        """Names for so many apps."""
        self.rounds += 1
        self.names = tuple(f"app-{self.rounds}.{n}" for n in range(count))

    def env(self, **more: str) -> dict[str, str]:
        return super().env(ORCHESTRIX_ORCHESTRATOR__CLAIM="1", **self._settings, **more)

    async def ready_node(self, at: At | None = None) -> tuple[Process, Client]:
        """A node that is ready, armed or not, and a client of it."""
        node, url = self.armed_node(at) if at else self.node()
        await self.ready(url)
        return node, Client(url)

    def armed_node(self, at: At) -> tuple[Process, str]:
        """A node that is to die."""
        return self.node(port=None, **at.env)

    async def armed(self, at: At) -> Process:
        """A node or a worker, as the point asks for, that is to die beside others."""
        if not at.point.startswith("worker."):
            return (await self.ready_node(at))[0]
        worker = self.worker(**at.env)
        await worker.wait_for_line("cmd.createGitRepo")
        return worker

    async def sent(self) -> None:
        """Waits until nothing is left in the outbox."""
        await eventually(self._nothing_to_send, deadline=20, every=0.05, message="every command is sent")

    async def _nothing_to_send(self) -> bool:
        return not await self.sql("SELECT 1 FROM outbox LIMIT 1")

    async def sql(self, *statements: str) -> list[Any]:
        """Runs the statements; the rows of the last one, if it has any."""
        engine = create_async_engine(self.database_url, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                for statement in statements:
                    result = await connection.execute(text(statement))
                return list(result.all()) if result.returns_rows else []
        finally:
            await engine.dispose()

    async def all_well(self, *, drafts: int = 0, state: str | None = None) -> Ledger:
        """Waits until every saga has ended and checks that nothing was lost or done twice (I1–I5, I9, I10).

        Every saga has gone the good run's way, or has ended in `state`.
        """
        await self.all_ended(self.names, deadline=30)
        await eventually(self._queues_are_empty, deadline=10, every=0.05, message="every message is acknowledged")
        ledger = await self.ledger()
        if state is None:
            ledger.check_completed(self.names)
        else:
            ledger.check_ended(self.names, state)
        ledger.check_effects(self.repos, drafts=drafts)
        ledger.check_wire(self.tap.read())
        return ledger

    def _queues_are_empty(self) -> bool:
        return not any(ready(self.broker_url, WORK).values())


async def died(process: Process, at: At) -> None:
    """Waits until the process has died at its point, and nowhere else."""
    assert await process.exited(deadline=20) == 137, f"{process.name} ended otherwise:\n{process.log_tail()}"
    assert process.log().splitlines().count(f"crash point {at} reached") == 1


async def create(client: Client, names: tuple[str, ...], *, at_once: int = 2) -> list[str]:
    """Starts an app for each name; those that were answered with success. One that is there already counts."""
    gate = asyncio.Semaphore(at_once)

    async def one(name: str) -> str | None:
        async with gate:
            try:
                answer = await client.create(name)
            except httpx.HTTPError:
                return None
        assert answer.status_code in (200, 409), answer.text
        return name

    return [name for name in await asyncio.gather(*map(one, names)) if name is not None]


async def node_dies(rig: Rig, at: At) -> None:
    """While it starts apps and moves them on."""
    rig.worker()
    node, client = await rig.ready_node(at)
    async with client:
        answered = await create(client, rig.names)
    await died(node, at)
    proofs.get(at.point, nothing_to_prove)(await evidence(rig))
    _, client = await rig.ready_node()
    async with client:
        again = await create(client, rig.names)
    assert again == list(rig.names)
    assert set(answered) <= {app.name for app in (await rig.ledger()).apps}, "I1"


async def keyed_start_dies(rig: Rig, at: At) -> None:
    """While it starts apps with a key each; the client asks again and gets the answer that it would have got."""
    rig.worker()
    node, client = await rig.ready_node(at)
    async with client:
        before = [await _post_keyed(client, name) for name in rig.names]
    await died(node, at)
    _, client = await rig.ready_node()
    async with client:
        after = [await _post_keyed(client, name) for name in rig.names]
    assert [answer.status_code for answer in after if answer] == [200] * len(rig.names)
    doomed = before.index(None)
    assert doomed == at.passage - 1
    for place, (first, second) in enumerate(zip(before, after, strict=True)):
        assert second is not None
        assert (REPLAYED in second.headers) == (place <= doomed), rig.names[place]
        assert first is None or first.text == second.text


async def _post_keyed(client: Client, name: str) -> httpx.Response | None:
    body = {"appName": name, "createdBy": "ada"}
    try:
        return await client.http.post("/apps", json=body, headers={"Idempotency-Key": f"key-of-{name}"})
    except httpx.HTTPError:
        return None


async def worker_dies(rig: Rig, at: At) -> None:
    """While it does the work."""
    worker = rig.worker(**at.env)
    _, client = await rig.ready_node()
    async with client:
        assert await create(client, rig.names, at_once=5) == list(rig.names)
    await died(worker, at)
    proofs.get(at.point, nothing_to_prove)(await evidence(rig))
    rig.worker()


async def worker_sets_aside(rig: Rig, at: At) -> None:
    """While it puts a command at the end of its queue that ten workers died with."""
    _, client = await rig.ready_node()
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await rig.sent()
    await eventually(lambda: ready(rig.broker_url, ["cmd.createGitRepo"])["cmd.createGitRepo"] == APPS, deadline=10)
    with channel(rig.broker_url) as ours:
        ours.confirm_delivery()
        for _ in range(APPS):
            method, properties, body = ours.basic_get("cmd.createGitRepo")
            properties.headers = {**(properties.headers or {}), "x-deaths": 10}
            ours.basic_publish("", "cmd.createGitRepo", body, properties)
            ours.basic_ack(method.delivery_tag)
    worker = rig.worker(**at.env)
    await died(worker, at)
    rig.worker()


async def wake_ups_are_due(rig: Rig, at: At) -> None:
    """While it sends what is due."""
    await _nobody_works(rig)
    await rig.sql("UPDATE apps SET wake_at = created_at, wake_reason = 'retry' WHERE wake_at IS NOT NULL")
    node, _ = rig.armed_node(at)
    await died(node, at)
    await rig.ready_node()
    rig.worker()


async def forgotten(rig: Rig, at: At) -> None:
    """While it sends again what the broker has forgotten."""
    await _nobody_works(rig)
    ((life,),) = await rig.sql("SELECT incarnation FROM broker_incarnation")
    with channel(rig.broker_url) as ours:
        for queue in (*WORK, *(f"{name}.dead" for name in WORK), f"orchestrix.incarnation.{life}"):
            ours.queue_delete(queue)
    await _patience_is_over(rig)
    node, _ = rig.armed_node(at)
    await died(node, at)
    await _patience_is_over(rig)
    again, _ = await rig.ready_node()
    await again.wait_for_line(f"broker is new or was reset: re-sent {APPS}")
    rig.worker()


async def _patience_is_over(rig: Rig) -> None:
    """Whoever has begun to tell the broker anew has had his time."""
    await rig.sql("UPDATE broker_incarnation SET changed_at = '2020-01-01 00:00:00'")


async def _nobody_works(rig: Rig) -> None:
    """Every app has its first command out; no process is left."""
    node, client = await rig.ready_node()
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await rig.sent()
    node.kill9()


async def node_buries(rig: Rig, at: At) -> None:
    """While it puts events aside that nobody can read."""
    node, client = await rig.ready_node(at)
    letters = poison(rig, "evt.gitRepoCreated")
    await died(node, at)
    _, client = await rig.ready_node()
    rig.worker()
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await all_buried(rig, "evt.gitRepoCreated", letters)


async def worker_buries(rig: Rig, at: At) -> None:
    """While it puts commands aside that nobody can read."""
    _, client = await rig.ready_node()
    letters = poison(rig, "cmd.createGitRepo")
    worker = rig.worker(**at.env)
    await died(worker, at)
    rig.worker()
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await all_buried(rig, "cmd.createGitRepo", letters)


def poison(rig: Rig, queue: str) -> list[str]:
    """Puts messages into the queue that are no JSON; their ids."""
    ids = [f"poison-{n}" for n in range(POISON)]
    with channel(rig.broker_url) as ours:
        ours.confirm_delivery()
        for id in ids:
            properties = pika.BasicProperties(message_id=id, delivery_mode=2)  # type: ignore[no-untyped-call]
            ours.basic_publish("", queue, b"\xff{", properties)
    return ids


async def all_buried(rig: Rig, queue: str, letters: list[str]) -> None:
    """Every letter is in the database once, although those in hand at the crash were sent there twice."""

    async def kept() -> list[str]:
        return sorted(row[0] for row in await rig.sql("SELECT message_id FROM dead_letters"))

    async def complete() -> bool:
        left = ready(rig.broker_url, [queue, f"{queue}.dead"])
        return not any(left.values()) and set(await kept()) == set(letters)

    await eventually(complete, deadline=20, every=0.05, message="every dead letter is kept")
    assert await kept() == sorted(letters)


# What proves that a process has come exactly as far as its point says.


@dataclass(frozen=True)
class Evidence:
    """What the others see right after the death."""

    outbox: set[str]
    commands: list[Seen]
    events: list[Seen]


async def evidence(rig: Rig) -> Evidence:
    seen = rig.tap.read()
    return Evidence(
        set((await rig.ledger()).outbox),
        [one for one in seen if one.exchange == COMMANDS],
        [one for one in seen if one.exchange == EVENTS],
    )


def nothing_to_prove(_: Evidence) -> None:
    return


def _not_sent(found: Evidence) -> None:
    assert found.outbox - {one.message_id for one in found.commands}, "a row is there and its message is not"


def _sent_and_owed(found: Evidence) -> None:
    assert found.outbox & {one.message_id for one in found.commands}, "the broker has the message, and the row is there"


def _event_sent(found: Evidence) -> None:
    assert found.events, "the broker has an event"


proofs: Final[dict[str, Callable[[Evidence], None]]] = {
    "start.after_commit": _not_sent,
    "outbox.before_publish": _not_sent,
    "outbox.after_publish": _sent_and_owed,
    "outbox.after_confirm": _sent_and_owed,
    "worker.after_publish": _event_sent,
    "worker.after_confirm": _event_sent,
}

# `dev`: one process, whose broker dies with it and forgets everything.

IN_DEV: Final = (
    "start.after_commit",
    "outbox.after_publish",
    "events.after_commit",
    "worker.after_effect",
    "redispatch.before_declare",
)
"""The points that lie between what the database keeps and what the broker forgets."""


async def dev(processes: Processes, folder: Path, at: At | None = None) -> tuple[Process, Client | None]:
    """`dev` in a folder, and a client of it unless it has died before it was ready."""
    env = {"ORCHESTRIX_ORCHESTRATOR__CLAIM": "1", **(at.env if at else {})}
    process = processes.spawn("dev", "--port", "0", cwd=folder, env=env)
    await eventually(lambda: process.returncode is not None or "Ready in" in process.log(), deadline=30)
    if process.returncode is not None:
        return process, None
    return process, Client(json.loads((folder / ".orchestrix" / "dev.json").read_text())["apiUrl"])


async def dev_dies(processes: Processes, folder: Path, at: At) -> None:
    """With some apps under way it is killed; started again it dies at its point; the third finishes everything."""
    home = folder / ".orchestrix"
    system = System(processes, home, f"sqlite+aiosqlite:///{home / 'orchestrix.db'}", "")
    names = tuple(f"app-{n}" for n in range(2 * APPS))
    for stop, fresh in ((None, names[:APPS]), (at, names[APPS:])):
        process, client = await dev(processes, folder, stop)
        if client is not None:
            async with client:
                await _start_some(client, fresh)
        if stop is None:
            process.kill9()
        else:
            await died(process, stop)
    _, client = await dev(processes, folder)
    assert client is not None
    async with client:
        assert await create(client, names) == list(names)
        ledger = await system.all_ended(names, deadline=30)
    ledger.check_completed(names)
    ledger.check_effects(system.repos, drafts=2 * APPS)


async def _start_some(client: Client, names: tuple[str, ...]) -> None:
    """Half of them plainly, the others with a key."""
    half = len(names) // 2
    await create(client, names[:half], at_once=2)  # one commit takes both, so there are several
    for name in names[half:]:
        await _post_keyed(client, name)
