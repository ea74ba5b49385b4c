"""Does a request wait for another one with its key, and not too long?"""

from __future__ import annotations

import asyncio

import pytest

from orchestrix.engine.requests import IdempotencyKey, InFlight
from orchestrix.errors import NotFound, OutcomeUnknown, Unavailable
from orchestrix.outbox import idempotency_keys
from orchestrix.outbox.idempotency_keys import IdempotencyKeys, KeyTaken
from orchestrix.persistence.idempotency import StoredAnswer
from tests.integration.orchestration.rig import Rig


def key(name: str = "key-1") -> IdempotencyKey:
    return IdempotencyKey("scope", name, "f", lambda _: StoredAnswer("f", 200, {}, b""))


async def test_who_comes_second_waits_for_the_first_one(rig: Rig) -> None:
    asked, order = IdempotencyKeys(rig.database), list[str]()
    go = asyncio.Event()

    async def first() -> str:
        order.append("first began")
        await go.wait()
        order.append("first ended")
        return "first"

    async def second() -> str:
        order.append("second")
        return "second"

    one = asyncio.create_task(asked.run_once(key(), first))
    while not order:
        await asyncio.sleep(0)
    other = asyncio.create_task(asked.run_once(key(), second))
    assert await asked.run_once(key("another"), second) == "second", "other keys do not wait"
    go.set()
    assert (await one, await other) == ("first", "second")
    assert order == ["first began", "second", "first ended", "second"]


async def test_who_waits_too_long_is_told_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_keys, "KEY_WAIT_TIMEOUT_S", 0.05)
    asked, go = IdempotencyKeys(rig.database), asyncio.Event()

    async def work() -> str:
        await go.wait()
        return "done"

    one = asyncio.create_task(asked.run_once(key(), work))
    await asyncio.sleep(0)
    assert await asked.run_once(key(), work) == InFlight()
    go.set()
    assert await one == "done"
    assert await asked.run_once(key(), work) == "done", "the key is free again"


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (Unavailable("the database is away"), Unavailable),
        (OutcomeUnknown("lost during COMMIT"), OutcomeUnknown),
        (ZeroDivisionError(), Unavailable),
        (NotFound("there is no such app"), None),
    ],
)
async def test_who_waited_for_one_that_ended_without_a_commit_hears_so(
    rig: Rig, error: Exception, heard: type[Exception] | None
) -> None:
    asked, go, began = IdempotencyKeys(rig.database), asyncio.Event(), asyncio.Event()

    async def fails() -> str:
        began.set()
        await go.wait()
        raise error

    async def work() -> str:
        return "done"

    one = asyncio.create_task(asked.run_once(key(), fails))
    await began.wait()
    others = [asyncio.create_task(asked.run_once(key(), work)) for _ in range(3)]
    await asyncio.sleep(0)
    go.set()
    first, *found = await asyncio.gather(one, *others, return_exceptions=True)
    assert first is error
    assert [type(one) if heard else one for one in found] == [heard or "done"] * 3
    assert await asked.run_once(key(), work) == "done", "who repeats it does it"


async def test_another_process_that_has_not_committed_yet(rig: Rig) -> None:
    async def work() -> str:
        raise KeyTaken("there is a row that nobody can read yet")

    assert await IdempotencyKeys(rig.database).run_once(key(), work) == InFlight()
