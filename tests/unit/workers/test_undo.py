"""How does a worker undo a step, and what does it report of it?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrix import Command, Context, Permanent, Retry
from orchestrix.worker.jobs.dispatch import effect_key_in
from tests.fakes.time import Shifted
from tests.support import eventually

from .rig import CREATED, DELETE, DELETED, FAILED, Rig, command, undo

pytestmark = pytest.mark.virtual_time


class Seen:
    """A handler that keeps the contexts which it was given."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []

    async def __call__(self, context: Context, command: Command) -> dict[str, str]:
        self.contexts.append(context)
        return {"archivedAs": "file:///away"}


def back(rig: Rig, app_id: int = 1, state: str = "COMPENSATING") -> None:
    """The row of an app whose first step is undone."""
    rig.rows.put(app_id, state=state, command_id=f"u-{app_id}")


async def test_what_is_undone_is_reported_by_the_undos_own_event(rig: Rig) -> None:
    worker = await rig.start(Seen())
    back(rig)
    rig.put(undo())
    await rig.settled()
    (body,) = rig.bodies(DELETED)
    del body["id"]
    assert 0 <= body.pop("beganMsAgo") < 60_000
    assert body == {
        "type": DELETED,
        "saga": "app",
        "appId": 1,
        "correlationId": "c-1",
        "causationId": "u-1",
        "data": {"archivedAs": "file:///away"},
    }
    assert (rig.bodies(CREATED), worker.counts.done) == ([], 1)


async def test_the_context_tells_an_undo_from_the_step(rig: Rig) -> None:
    handler = Seen()
    await rig.start(handler)
    rig.send(1)
    back(rig, 2)
    rig.put(undo(2, attempt=3, undoes_attempt=4))
    await rig.settled()
    do, undone = sorted(handler.contexts, key=lambda context: context.app_id)
    assert (do.undoes, do.undoes_attempt, do.attempt) == (False, None, 1)
    assert (undone.undoes, undone.undoes_attempt, undone.attempt, undone.step) == (True, 4, 3, "createGitRepo")
    assert (do.idempotency_key, do.effect_key) == ("app:1:createGitRepo:do",) * 2
    assert (undone.idempotency_key, undone.effect_key) == ("app:2:createGitRepo:undo", "app:2:createGitRepo:do")


async def test_the_effect_key_is_the_commands_own(rig: Rig) -> None:
    handler = Seen()
    await rig.start(handler)
    back(rig, 2)
    rig.put(undo(2, attempt=3, undoes_attempt=4, effect_key="i:app:2:1000:createGitRepo:run2"))
    await rig.settled()
    assert [context.effect_key for context in handler.contexts] == ["i:app:2:1000:createGitRepo:run2"]


FAILURES = [
    (Permanent("Foreign", "not mine"), {"type": "Foreign", "message": "not mine", "retryable": False}),
    (Retry(5, "the forge is closed"), {"type": "Retry", "message": "the forge is closed", "retryAfterMs": 5000}),
    (KeyError("x"), {"type": "KeyError", "message": "'x'", "retryable": True}),
]


@pytest.mark.parametrize(("error", "told"), FAILURES, ids=["permanent", "retry", "bug"])
async def test_an_undo_that_fails_is_reported_like_any_other_step(
    rig: Rig, error: Exception, told: dict[str, object]
) -> None:
    async def refuse(context: Context, command: Command) -> None:
        raise error

    worker = await rig.start(refuse)
    back(rig)
    rig.put(undo())
    await rig.settled()
    (body,) = rig.bodies(FAILED)
    assert body["causationId"] == "u-1"
    assert body["error"] == {"retryable": True, **told}
    assert worker.counts.failed == 1


async def test_an_undo_that_takes_too_long_is_named_as_such(rig: Rig) -> None:
    async def hang(context: Context, command: Command) -> None:
        await asyncio.Event().wait()

    await rig.start(hang)
    back(rig)
    rig.put(undo(timeout_ms=1))
    await rig.settled()
    error = rig.error()
    assert (error["type"], error["message"]) == ("Timeout", "the undo of createGitRepo timed out after 0.001 s")


async def test_an_undo_that_killed_its_workers_fails_its_step(rig: Rig) -> None:
    handler = Seen()
    await rig.start(handler)
    back(rig)
    rig.put(undo(), count=1, headers={"x-deaths": 10, "x-alone": 1})
    await rig.settled()
    assert (rig.error()["type"], handler.contexts) == ("WorkerCrashed", [])


async def test_an_undo_before_its_row_is_looked_at_again_and_dropped_in_the_end(rig: Rig, time: Shifted) -> None:
    handler = Seen()
    worker = await rig.start(handler)
    rig.rows.put(1)
    rig.rows.put(2)
    rig.put(undo(1))
    rig.put(undo(2))
    await eventually(lambda: len(rig.rows.looks) >= 2, deadline=5.0)
    back(rig, 2)
    await eventually(lambda: rig.bodies(DELETED), deadline=5.0)
    time.advance(2.0)
    await rig.settled()
    assert [context.app_id for context in handler.contexts] == [2]
    assert (worker.counts.older, worker.counts.done) == (1, 1)


async def test_an_undo_after_the_end_is_done_and_a_step_meanwhile_is_not(rig: Rig) -> None:
    handler = Seen()
    worker = await rig.start(handler)
    back(rig, 1, "FAILED")
    rig.put(undo(1, expected_state="FAILED"))
    back(rig, 2)
    rig.put(command(2))
    await rig.settled()
    assert [context.app_id for context in handler.contexts] == [1]
    assert (worker.counts.done, worker.counts.dropped) == (1, 1)


@pytest.mark.parametrize(
    ("ordered", "reason"),
    [
        (undo(undoes_attempt=None), "undoesAttempt: is missing"),
        (command(undoes_attempt=1), "undoesAttempt: is allowed only in an undo"),
        (undo(undoes_attempt=0), "undoesAttempt: must be a whole number above 0"),
    ],
)
async def test_an_undo_must_say_what_it_undoes(rig: Rig, ordered: Command, reason: str) -> None:
    handler = Seen()
    await rig.start(handler)
    back(rig)
    rig.put(ordered)
    await rig.settled()
    (letter,) = rig.broker.published
    assert (letter.exchange, letter.routing_key) == ("orchestrator.dead", ordered.type)
    assert (letter.headers["x-reason"], handler.contexts) == (reason, [])


async def test_the_worker_reads_both_queues(rig: Rig) -> None:
    worker = await rig.start(Seen())
    assert DELETE in worker.queues


STEP = {"saga": "trip", "appId": 7, "step": "build", "idempotencyKey": "trip:7:build:undo"}


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({**STEP, "effectKey": "i:trip:7:1000:build"}, "i:trip:7:1000:build"),
        (STEP, "trip:7:build:do"),
        ({"pages": 3}, None),
        ({"saga": "trip", "appId": 7, "step": "build"}, None),
        (None, None),
        ([1], None),
    ],
)
def test_a_job_that_is_a_step_has_its_effect_key(payload: Any, key: str | None) -> None:
    assert effect_key_in(payload) == key
