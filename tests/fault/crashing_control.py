"""How is a process brought to a crash point of retry, undo, dead letters and what people ask?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from orchestrix.broker.topology import DEAD
from orchestrix.saga.definition import FAILED
from tests import invariants
from tests.acceptance.plain_pika import PikaWorker, fail
from tests.acceptance.system import Client
from tests.fault import brief
from tests.fault.crashing import APPS, At, Rig, all_buried, create, died, poison
from tests.support import eventually
from tests.taps import channel

SOON: Final = 200
"""Milliseconds after which a step, or its undo, is tried again: time for all to have failed once."""
CREATE, REGISTER, DELETE = "cmd.createGitRepo", "cmd.registerApp", "cmd.deleteGitRepo"


@contextmanager
def failing(rig: Rig, **wishes: dict[str, Any]) -> Iterator[PikaWorker]:
    """A stranger fails these commands (`createGitRepo=…`), each with what it says about it."""
    queues = {f"cmd.{name}": wish for name, wish in wishes.items()}

    def answer(channel: Any, command: dict[str, Any]) -> None:
        fail(channel, command, **queues[command["type"]])

    with PikaWorker(rig.broker_url, answer, tuple(queues)) as worker:
        yield worker


async def retry_is_due(rig: Rig, at: At) -> None:
    """While it sends another attempt of a step."""
    node, client = await rig.ready_node(at)
    with failing(rig, createGitRepo={"retryable": True, "after_ms": SOON}):
        async with client:
            assert await create(client, rig.names, at_once=10) == list(rig.names)
        await died(node, at)
    await _proved(rig, at, "attempt = 2 AND wake_reason = 'retry'", "attempt = 2 AND wake_reason = 'deadline'")
    await rig.ready_node()
    rig.worker()


async def undo_is_due(rig: Rig, at: At) -> None:
    """While it sends another attempt of an undo."""
    node, client = await rig.ready_node(at)
    rig.worker("-q", CREATE)
    with failing(rig, registerApp={}, deleteGitRepo={"retryable": True, "after_ms": SOON}):
        async with client:
            assert await create(client, rig.names, at_once=10) == list(rig.names)
        await died(node, at)
    undone = "state = 'COMPENSATING' AND attempt = 2 AND wake_reason"
    await _proved(rig, at, f"{undone} = 'retry'", f"{undone} = 'deadline'")
    await rig.ready_node()
    with failing(rig, registerApp={}):  # what was not told to have failed before the death comes again
        rig.worker("-q", DELETE)
        await rig.all_ended(rig.names, deadline=30)


async def step_is_late(rig: Rig, at: At) -> None:
    """While it lets a step fail whose time is over; nobody answers that step."""
    shutil.copy(Path(brief.__file__), rig.folder)
    # Long enough that the command leaves before, however busy the machine is: one that has not left excuses the step.
    env = {"ORCHESTRIX_SAGAS": "brief", "ORCHESTRIX_WORKERS": "brief", "BRIEF_SECONDS": "2"}
    declares, url = rig.node(port=None, **env)
    await rig.ready(url)
    worker = rig.worker("-q", "cmd.grab", "-q", "cmd.drop", **env)
    await worker.wait_for_line("cmd.grab")
    with PikaWorker(rig.broker_url, lambda _channel, _command: None, ("cmd.tell",)) as silent:
        await eventually(silent.reads.is_set, deadline=20)
        declares.kill9()
        # This one never sees a queue that nobody reads, which would excuse the step.
        node, url = rig.node(port=None, **at.env, **env)
        await rig.ready(url)
        async with Client(url) as client:
            bodies = [{"key": name, "createdBy": "ada"} for name in rig.names]
            # At once, for the node dies soon after the first of them.
            started = await asyncio.gather(*(client.http.post("/sagas/brief", json=body) for body in bodies))
            assert {one.status_code for one in started} == {200}
        await died(node, at)
        moved = await rig.sql("SELECT count(*) FROM saga_instances WHERE state = 'COMPENSATING'")
        owed = await rig.sql("SELECT count(*) FROM outbox WHERE type = 'cmd.drop'")
        assert (moved == owed == [(0,)]) == (at.point == "timers.before_commit"), (moved, owed)
        _, url = rig.node(port=None, **env)
        await rig.ready(url)
        await eventually(lambda: _brief_has_failed(rig), deadline=20, every=0.1, message="every saga fails")
    assert not list((rig.folder / brief.GRABBED).iterdir()), "I5: the step before is undone"


async def _brief_has_failed(rig: Rig) -> bool:
    ledger = await invariants.read(rig.database_url, saga=brief.BRIEF.name)
    ledger.check(rig.names, saga=brief.BRIEF)
    assert {app.state for app in ledger.apps} == {FAILED}
    ledger.check_wire(rig.tap.read(), saga=brief.BRIEF)
    return True


async def undo_dies(rig: Rig, at: At) -> None:
    """While it takes a repository away."""
    _, client = await rig.ready_node()
    with failing(rig, registerApp={}):
        worker = rig.worker("-q", CREATE, "-q", DELETE, **at.env)
        async with client:
            assert await create(client, rig.names, at_once=5) == list(rig.names)
        await died(worker, at)
        assert len(list(rig.repos.glob("*.git"))) > 0, "what is undone is still there"
        rig.worker("-q", CREATE, "-q", DELETE)
        await rig.all_ended(rig.names, deadline=30)


async def asked_node_dies(rig: Rig, at: At) -> None:
    """While people cancel; they ask again, which changes nothing where it was done."""
    node, client = await rig.ready_node(at)
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
        ids = [app.id for app in (await rig.ledger()).apps if app.name in rig.names]
        before = [await _cancel(client, id) for id in ids]
    await died(node, at)
    assert before.index(None) == at.passage - 1
    doomed = next(app for app in (await rig.ledger()).apps if app.id == ids[at.passage - 1])
    assert doomed.version == (1 if at.point == "control.before_commit" else 2)
    _, client = await rig.ready_node()
    async with client:
        after = [await _cancel(client, id) for id in ids]
        await rig.sent()  # else a deadline is moved to a time after the sending
        for id in ids:  # nobody has taken the first command, whose answer is waited for
            soon = (datetime.now(UTC) + timedelta(seconds=1.0)).isoformat()
            moved = await client.http.patch(f"/apps/{id}/deadline", json={"at": soon, "reason": "nobody works on it"})
            assert moved.status_code == 200, moved.text
    assert [answer and answer.json()["version"] for answer in after] == [2] * len(ids)
    said = await rig.sql("SELECT instance_id, verb FROM audit WHERE verb = 'cancel'")
    assert sorted(row[0] for row in said if row[0] in ids) == sorted(ids), "each was done once"
    rig.worker()


async def _cancel(client: Client, id: int) -> httpx.Response | None:
    try:
        answer = await client.http.post(f"/apps/{id}/cancel", json={"reason": "not wanted"})
    except httpx.HTTPError:
        return None
    assert answer.status_code == 200, answer.text
    return answer


async def redispatcher_dies(rig: Rig, at: At) -> None:
    """While somebody has all commands sent again, and then asks once more."""
    node, client = await rig.ready_node(at)
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
        await rig.sent()
        noted = await _noted(rig)
        with pytest.raises(httpx.HTTPError):
            await _redispatch(client)
    await died(node, at)
    assert await _noted(rig) == noted, "nobody was told that it is done"
    _, client = await rig.ready_node()
    async with client:
        assert await _redispatch(client) == APPS
    assert await _noted(rig) == noted + 1
    rig.worker()


async def _redispatch(client: Client) -> int:
    answer = await client.http.post("/redispatch", json={"saga": "app", "reason": "to be sure"})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["redispatched"])


async def _noted(rig: Rig) -> int:
    ((count,),) = await rig.sql("SELECT count(*) FROM audit WHERE verb = 'redispatch'")
    return int(count)


async def mover_dies(rig: Rig, at: At) -> None:
    """While it keeps dead letters."""
    older = await _count(rig)
    node, client = await rig.ready_node(at)
    letters = poison(rig, "evt.gitRepoCreated")
    await died(node, at)
    kept = await _count(rig)  # it may have died at one of an earlier turn, which is kept and was not acknowledged
    assert kept == older if at.point == "deadletters.before_commit" else kept > 0
    _, client = await rig.ready_node()
    rig.worker()
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await all_buried(rig, "evt.gitRepoCreated", letters)


async def redriving_dies(rig: Rig, at: At) -> None:
    """While somebody sends the dead commands again, and then asks once more."""
    older = await _count(rig)
    node, client = await rig.ready_node(at)
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
        await rig.sent()
        _kill_commands(rig)
        letters = await _letters(rig)
        before = [await _redrive(client, id) for id in letters]
    await died(node, at)
    assert before.index(None) == at.passage - 1
    sent = await _count(rig, "redriven_at IS NOT NULL") - older
    assert sent == at.passage - (at.point == "redrive.before_commit")
    _, client = await rig.ready_node()
    async with client:
        assert None not in [await _redrive(client, id) for id in letters]
    assert await _count(rig, "redriven <> 1") == 0
    rig.worker()


async def _count(rig: Rig, which: str = "id IS NOT NULL") -> int:
    ((count,),) = await rig.sql(f"SELECT count(*) FROM dead_letters WHERE {which}")
    return int(count)


def _kill_commands(rig: Rig) -> None:
    """What is in the queue of the first commands dies instead."""
    with channel(rig.broker_url) as ours:
        ours.confirm_delivery()
        for _ in range(APPS):
            _, properties, body = ours.basic_get(CREATE, auto_ack=True)
            properties.headers = {**(properties.headers or {}), "x-reason": "by-hand", "x-routing-key": CREATE}
            ours.basic_publish(DEAD, CREATE, body, properties)


async def _letters(rig: Rig) -> list[str]:
    """The ids of the letters once all are kept."""
    found: list[str] = []

    async def all_kept() -> bool:
        found[:] = [row[0] for row in await rig.sql("SELECT id FROM dead_letters WHERE redriven_at IS NULL")]
        return len(found) == APPS

    await eventually(all_kept, deadline=20, every=0.05, message="every dead command is kept")
    return found


async def _redrive(client: Client, id: str) -> httpx.Response | None:
    try:
        answer = await client.http.post(f"/dead-letters/{id}/redrive", json={"reason": "mended"})
    except httpx.HTTPError:
        return None
    assert answer.status_code == 200, answer.text
    return answer


async def _proved(rig: Rig, at: At, before: str, after: str) -> None:
    """What the rows say right after the death: all are as `before`, or some are as `after` and owe their command."""
    ((waiting,),) = await rig.sql(f"SELECT count(*) FROM apps WHERE {before}")
    ((sent,),) = await rig.sql(f"SELECT count(*) FROM apps WHERE {after}")
    owes = f"SELECT count(*) FROM outbox WHERE id IN (SELECT command_id FROM apps WHERE {after})"
    ((owed,),) = await rig.sql(owes)
    if at.point == "timers.before_commit":
        assert waiting > sent == 0, (waiting, sent)
    else:
        assert sent == owed > 0, (waiting, sent, owed)
