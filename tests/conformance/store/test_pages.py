"""Does a list show each instance that fits once, in order, page by page?"""

from __future__ import annotations

from datetime import timedelta

import pytest

from app import clock
from app.errors import Invalid
from app.persistence import instances
from app.persistence.engine import Database
from app.persistence.instances import Filter, sort_value
from app.persistence.pairs import APPS, INSTANCES, Pair
from tests.conformance.store.build import ended, some, started, stepped, stored

Of = tuple[Pair, str]
SORTS = ["createdAt", "-createdAt", "updatedAt", "-updatedAt", "appName", "-appName"]


async def names(database: Database, pair: Pair, saga: str, wanted: Filter, sort: str = "key") -> list[str]:
    async with database.read() as connection:
        return [found.key for found in await instances.page(connection, pair, saga, wanted, sort, 100)]


@pytest.mark.parametrize("sort", SORTS)
async def test_pages_have_no_gaps_and_no_repeats_among_equal_times(database: Database, of: Of, sort: str) -> None:
    pair, saga = of
    now = clock.now()
    moves = [
        started(f"n{(place * 7) % 23:02}", saga, now=now + timedelta(microseconds=place // 9)) for place in range(23)
    ]
    begun = await stored(database, pair, moves)
    seen = []
    after = None
    async with database.read() as connection:
        while chunk := await instances.page(connection, pair, saga, Filter(), sort, 4, after):
            seen += chunk
            after = sort_value(sort, chunk[-1]), chunk[-1].id
    assert len(seen) == len(begun)
    assert seen == sorted(begun, key=lambda one: (sort_value(sort, one), one.id), reverse=sort.startswith("-"))


async def test_a_page_stays_where_it_is_while_rows_are_added(database: Database, of: Of) -> None:
    pair, saga = of
    begun = await some(database, 6, pair, saga)
    async with database.read() as connection:
        first = await instances.page(connection, pair, saga, Filter(), "-createdAt", 3)
    await stored(database, pair, [started("newer", saga, now=clock.now() + timedelta(seconds=1))])
    after = first[-1].created_at, first[-1].id
    async with database.read() as connection:
        second = await instances.page(connection, pair, saga, Filter(), "-createdAt", 3, after)
    assert {one.id for one in first + second} == {one.id for one in begun}


async def test_filters_narrow_together(database: Database, of: Of) -> None:
    pair, saga = of
    now = clock.now()
    moves = [started(f"n{place}", saga, now=now + timedelta(seconds=place), by="ab"[place % 2]) for place in range(6)]
    begun = await stored(database, pair, moves)
    async with database.begin() as tx:
        changes = [
            (1, ended(begun[0])),
            (1, ended(begun[2], state="FAILED")),
            (1, stepped(begun[3], state="REGISTERING")),
        ]
        await instances.update(tx, pair, changes)
    assert await names(database, pair, saga, Filter(states=["COMPLETED", "FAILED"])) == ["n0", "n2"]
    assert await names(database, pair, saga, Filter(created_by="b")) == ["n1", "n3", "n5"]
    assert await names(database, pair, saga, Filter(created_by="B")) == []
    between = Filter(created_after=begun[1].created_at, created_before=begun[4].created_at)
    assert await names(database, pair, saga, between) == ["n2", "n3"]
    assert await names(database, pair, saga, Filter(states=["REGISTERING"], created_by="b", prefix="n3")) == ["n3"]
    assert await names(database, pair, saga, Filter(states=["REGISTERING"], created_by="a")) == []


PREFIXES = {
    "a": ["a", "a b", "ab", "a\U0010ffffz"],
    "A": ["A"],
    "a ": ["a b"],
    "%": ["%", "%x"],
    "_": ["_y"],
    "\\": ["\\z"],
    "%_": [],
    "é": ["é"],
    "😀": ["😀", "😀😀"],
    "\ud7ff": ["\ud7ffx"],
    "\U0010ffff": ["\U0010ffff"],
    "a\U0010ffff": ["a\U0010ffffz"],
    "'": ["'q"],
    "": ["\ue000"],
}


@pytest.mark.parametrize("prefix", [prefix for prefix in PREFIXES if prefix])
async def test_a_prefix_is_meant_letter_by_letter(database: Database, of: Of, prefix: str) -> None:
    pair, saga = of
    every = sorted({name for names_ in PREFIXES.values() for name in names_})
    await stored(database, pair, [started(name, saga) for name in every])
    assert await names(database, pair, saga, Filter(prefix=prefix)) == PREFIXES[prefix]
    assert await names(database, pair, saga, Filter(prefix="")) == every


async def test_an_unknown_sort_is_refused(database: Database) -> None:
    with pytest.raises(Invalid, match="sort"):
        await names(database, APPS, "app", Filter(), "state")


async def test_a_saga_sees_its_own_instances_only(database: Database) -> None:
    await stored(database, INSTANCES, [started("x", "order"), started("y", "refund")])
    assert await names(database, INSTANCES, "order", Filter()) == ["x"]
    assert await names(database, INSTANCES, "refund", Filter(prefix="x")) == []
