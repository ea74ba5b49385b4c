"""In which order are wake-ups listed that live in two pairs of tables?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from orchestrix.api.answers import moment
from orchestrix.api.deadlines.models import WakeUpPage
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.commands import NEVER
from orchestrix.saga.transition import block

from .answers import problem
from .world import World

BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)


async def due(world: World, key: str, saga: str, second: int, **more: Any) -> None:
    """A new instance with that wake-up."""
    instance = await world.started(key, saga)
    table = saga_tables_of(saga).instances
    values = {"wake_at": BEGIN + timedelta(seconds=second), **more}
    async with world.database.begin() as tx:
        await tx.execute(update(table).where(table.c.id == instance.id).values(values))


async def listed(world: World, path: str) -> list[str]:
    """The keys, page by page with a bar between."""
    found: list[str] = []
    following: str | None = path
    while following:
        answer = await world.client.get(following)
        assert answer.status_code == 200, answer.text
        WakeUpPage.model_validate(answer.json())
        found += [*(["|"] if found else []), *(item["key"] for item in answer.json()["items"])]
        link = answer.headers.get("link")
        following = link.removeprefix("<").removesuffix('>; rel="next"') if link else None
    return found


async def test_nothing_is_due(world: World) -> None:
    assert (await world.client.get("/deadlines")).json() == {"items": [], "nextCursor": None}


async def test_a_wake_up_tells_who_when_and_why(world: World) -> None:
    await due(world, "billing", "app", 1, attempt=3, wake_reason="no_consumer", deadline_at=BEGIN)
    (item,) = (await world.client.get("/deadlines")).json()["items"]
    assert item == {
        "saga": "app",
        "id": 1,
        "key": "billing",
        "state": "APP_INITIATED",
        "wakeAt": moment(BEGIN + timedelta(seconds=1)),
        "wakeReason": "no_consumer",
        "step": "createGitRepo",
        "attempt": 3,
        "deadlineAt": moment(BEGIN),
    }


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 200])
async def test_the_soonest_comes_first_whatever_its_saga(world: World, limit: int) -> None:
    for key, saga, second in [("d", "order", 2), ("a", "app", 1), ("e", "order", 2), ("f", "app", 3)]:
        await due(world, key, saga, second)
    for key, saga, second in [("b", "app", 2), ("c", "app", 2), ("g", "order", 4)]:
        await due(world, key, saga, second)
    found = await listed(world, f"/deadlines?limit={limit}")
    assert "".join(found).replace("|", "") == "abcdefg"
    assert all(len(page) <= limit for page in "".join(found).split("|"))


async def test_what_no_clock_wakes_is_not_listed(world: World) -> None:
    held = await world.started("held")
    await world.store(held, block(held, "unsendable", "too large", BEGIN))
    await world.completed("done")
    await due(world, "never", "app", 0, wake_at=NEVER)
    assert await listed(world, "/deadlines") == []
    never = (await world.client.get("/apps?q=never")).json()["items"][0]
    assert (never["wakeAt"], never["wakeReason"]) == (None, "deadline")


async def test_a_strange_cursor_is_400(world: World) -> None:
    for key in "ab":
        await due(world, key, "app", 1)
    other = (await world.client.get("/apps?limit=1")).json()["nextCursor"]
    for cursor in (other, "rubbish", ""):
        answer = await world.client.get(f"/deadlines?cursor={cursor}")
        assert problem(answer, 400, "bad_parameter")["parameter"] == "cursor"
