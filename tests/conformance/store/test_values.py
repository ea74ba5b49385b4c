"""Do names, times and data come back exactly as they were stored?"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrix.errors import Invalid
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import APPS, SagaTables
from orchestrix.saga.state import StateChange
from tests.conformance.store.build import some, started, stepped, stored

NAMES = [
    "😀" * 200,
    "\U0010ffff",
    "x",
    "X",
    "é",
    "e\u0301",
    "ß",
    "ss",
    "'; DROP TABLE apps; --",
    "../../etc",
    "a\\b",
    "%_\\%",
    "\u202egnp",
    "ı",
    "i",
    "ﬁ",
    'say "hi"',
    "${x} :name %s %(x)s ?",
]

DATA: list[dict[str, Any]] = [
    {},
    {"big": 2**64 + 1, "huge": -(10**40), "small": 5e-324, "third": 1 / 3, "whole": 1.0, "edge": 2**53 + 1},
    {"text": "\\ \" ' \n \t \x01 \x7f \u2028 😀 é e\u0301", "": "no name", "😀": None},
    {"deep": [[[{"a": [True, False, None]}]]], "empty": [{}, [], ""]},
    {"long": 'x\\"é' * 50_000},
]


async def test_names_are_told_apart_letter_by_letter(database: Database, of: tuple[SagaTables, str]) -> None:
    pair, saga = of
    found = await stored(database, pair, [started(name, saga, by=name) for name in NAMES])
    assert [instance.key for instance in found] == NAMES
    assert [instance.created_by for instance in found] == NAMES
    async with database.read() as connection:
        for instance in found:
            assert await instances.by_key(connection, pair, saga, instance.key) == instance
        assert await instances.by_key(connection, pair, saga, "E\u0301") is None


async def test_a_name_over_its_length_is_refused_or_kept_whole(database: Database) -> None:
    name = "x" * 201
    try:
        async with database.begin() as tx:
            (id,) = await instances.insert(tx, APPS, [started(name)])
    except Invalid:
        return
    async with database.read() as connection:
        found = await instances.by_key(connection, APPS, "app", name)
    assert found is not None
    assert found.id == id


@pytest.mark.parametrize("data", DATA, ids=["empty", "numbers", "letters", "nested", "long"])
async def test_data_comes_back_as_it_went_in(database: Database, data: dict[str, Any]) -> None:
    (found,) = await stored(database, APPS, [started("x", data=data)])
    assert found.data == data
    async with database.begin() as tx:
        await instances.update(tx, APPS, [(1, stepped(found, data={"again": data}))])
    async with database.read() as connection:
        after = await instances.get(connection, APPS, "app", found.id)
    assert after is not None
    assert after.data == {"again": data}
    assert all(type(after.data["again"][name]) is type(value) for name, value in data.items())


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
# Below 1e15: PostgreSQL writes larger ones without a point, as the same number, which Python reads as an int.
_floats = st.floats(-1e15, 1e15)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _floats | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)


@given(data=st.dictionaries(_text, _json, max_size=4))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_data_survives_a_bulk_update(database: Database, data: dict[str, Any]) -> None:
    async with database.begin() as tx:
        moved = started(f"name-{len(await instances.page(tx, APPS, 'app', instances.InstanceFilter(), limit=1000))}")
        (id,) = await instances.insert(tx, APPS, [moved])
        assert id is not None
        await instances.update(tx, APPS, [(1, stepped(replace(moved.instance, id=id), data=data))])
        found = await instances.get(tx, APPS, "app", id)
    assert found is not None
    assert found.data == data


async def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    (before,) = await some(database, 1)
    naive = StateChange(2, "A", "B", "x", "ada", "c", None, None, datetime(2026, 1, 1))
    with pytest.raises(Invalid):
        async with database.begin() as tx:
            await history.insert(tx, APPS, [(before.id, naive)])


async def test_what_strangers_send_cannot_break_a_batch(database: Database) -> None:
    (before,) = await some(database, 1)
    bad = StateChange(2, "A", "B", "why\0 \ud800", "ada", "c", "id\0" + "x" * 400, None, before.created_at)
    async with database.begin() as tx:
        await history.insert(tx, APPS, [(before.id, bad)])
    async with database.read() as connection:
        (found,) = await history.listing(connection, APPS, before.id, 1, 10)
    assert found.reason == "why\ufffd \ufffd"
    assert found.caused_by == ("id\ufffd" + "x" * 400)[:255]
