"""Who wins when an answer and its deadline come at the same instant?  One of them, on every database."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest

from orchestrix.persistence.engine import Database
from orchestrix.saga.state import Instance
from tests.integration.orchestration.rig import Rig
from tests.support import eventually

WAVE: Final = 20
AROUND: Final = 0.05
"""Seconds before or behind its deadline within which an answer comes."""
DATABASES = ["sqlite", *(pytest.param(name, marks=pytest.mark.servers) for name in ("postgres", "mariadb"))]


@pytest.fixture(params=DATABASES)
async def busy_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A node over each kind of database."""
    database = Database(request.getfixturevalue(f"{request.param}_store"))
    made = Rig(database)
    await made.start()
    await made.wakeups.start()
    yield made
    await made.stop()
    await database.close()


async def test_an_answer_and_its_deadline_at_the_same_instant(busy_rig: Rig, scale: Callable[[int, int], int]) -> None:
    outcomes: Counter[str] = Counter()
    for wave in range(scale(100, 1000) // WAVE):
        names = [f"saga-{wave}-{n}" for n in range(WAVE)]
        sagas = await asyncio.gather(*(busy_rig.begin(name, saga="hasty") for name in names))
        await busy_rig.outbox_empty(deadline=10)  # a step's time begins when its command has left
        await asyncio.gather(*(_answered_in_time_or_not(busy_rig, one) for one in sagas))
        for one in sagas:
            outcomes[await _decided(busy_rig, one)] += 1
    assert len(outcomes) == 2, f"both come first now and then: {outcomes}"


async def _answered_in_time_or_not(rig: Rig, saga: Instance) -> None:
    """An answer to the first attempt, about when its time is over."""
    due = (await rig.now(saga)).wake_at
    left = (due - rig.database.now()).total_seconds() if due is not None else 0.0
    left += random.uniform(-AROUND, AROUND)
    await asyncio.sleep(max(0.0, left))
    rig.report(saga, "evt.hurried")


async def _decided(rig: Rig, saga: Instance) -> str:
    """Which came first, in the second row of the history.

    A late answer to the first attempt is true too: it counts unless the last attempt is over before it is read.
    """

    async def ended() -> bool:
        return not (await rig.now(saga)).live

    await eventually(ended, deadline=10, message=f"{saga.key} ends")
    history = await rig.history(saga)
    reasons = [row.reason for row in history]
    assert [row.version for row in history] == list(range(1, len(history) + 1))
    waits = ["retry 2: deadline", "retry 3: deadline"]
    good = [["created", *waits[:tries], "evt.hurried"] for tries in range(3)]
    assert reasons in [*good, ["created", *waits, "deadline"]], reasons
    assert history[-1].to_state == ("FAILED" if reasons[-1] == "deadline" else "COMPLETED")
    return "answer" if reasons == good[0] else "deadline"
