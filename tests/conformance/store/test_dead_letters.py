"""Is each dead letter kept once, found again, and open until it was sent again?"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest

from orchestrix.broker.amqp import codec
from orchestrix.broker.port import Delivery
from orchestrix.dead_letters.parse import parse
from orchestrix.dead_letters.redrive import insert_rows, row_of, taken_ids
from orchestrix.errors import Invalid
from orchestrix.outbox.rows import message_of
from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.dead_letters import KEPT_BODY_BYTES, DeadLetter, DeadLetterFilter, kept
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING

CREATED = "evt.gitRepoCreated"
QUEUE = "app.orchestrator.events"
DIED = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ALL = DeadLetterFilter(open_only=False)


def letter(name: str, content: bytes = b"{}", **more: Any) -> DeadLetter:
    """A letter that was recorded one minute after it died."""
    body, size, digest = kept(content)
    fields: dict[str, Any] = {
        "id": str(uuid5(NAMESPACE_URL, name)),
        "queue": QUEUE,
        "exchange": "orchestrator.events",
        "routing_key": "evt.gitRepoCreated",
        "type": "evt.gitRepoCreated",
        "reason": "not-json: x",
        "deliveries": 1,
        "headers": {"x-reason": "not-json"},
        "died_at": DIED,
        "recorded_at": more.get("died_at", DIED) + timedelta(minutes=1),
    }
    return DeadLetter(body=body, body_size=size, body_sha256=digest, **{**fields, **more})


async def recorded(database: Database, *letters: DeadLetter) -> None:
    async with database.begin() as tx:
        await dead_letters.record(tx, letters)


async def redriven(database: Database, *letters: DeadLetter, at: datetime = DIED + timedelta(hours=1)) -> None:
    async with database.begin() as tx:
        await dead_letters.redriven(tx, [one.id for one in letters], at)


async def now(database: Database, one: DeadLetter) -> DeadLetter | None:
    async with database.read() as connection:
        return await dead_letters.get(connection, one.id)


async def ids(database: Database, wanted: DeadLetterFilter) -> list[str]:
    async with database.read() as connection:
        return [one.id for one in await dead_letters.page(connection, wanted, 100)]


async def test_a_letter_comes_back_as_it_went_in(database: Database) -> None:
    full = letter(
        "full",
        bytes(range(256)) * 256,
        saga="app",
        instance_id=7,
        message_id="m-1",
        correlation_id="c-1",
        error="é 😀 " * 100,
        deliveries=2**40,
        headers={"x-death": [{"count": 2**63 - 1, "queue": "x"}], "none": None, "deep": {"a": [1.5, True]}},
    )
    bare = letter("bare", b"")
    await recorded(database, full, bare)
    assert await now(database, full) == full
    assert await now(database, bare) == bare
    assert await now(database, letter("unknown")) is None


async def test_of_a_long_body_its_size_and_hash_are_kept(database: Database) -> None:
    long = letter("long", b"x" * (KEPT_BODY_BYTES + 1))
    await recorded(
        database, long, replace(letter("careless"), body=b"y" * (KEPT_BODY_BYTES + 1), body_size=KEPT_BODY_BYTES + 1)
    )
    found = await now(database, long)
    assert found is not None
    assert (found.body, found.body_size) == (None, KEPT_BODY_BYTES + 1)
    assert found.body_sha256 == hashlib.sha256(b"x" * (KEPT_BODY_BYTES + 1)).hexdigest()
    careless = await now(database, letter("careless"))
    assert careless is not None
    assert careless.body is None


async def test_what_strangers_send_cannot_keep_the_others_out(database: Database) -> None:
    bad = letter(
        "bad",
        b"\0\xff",
        queue="q\0" + "x" * 400,
        type="\ud800",
        message_id="m" * 300,
        reason="r" * 900,
        error="e\0",
        headers={"\0": "\ud800", "bytes": b"\xff\0", "when": DIED, "nan": float("nan"), "list": (1, "\0")},
    )
    await recorded(database, letter("good"), bad)
    found = await now(database, bad)
    assert found is not None
    assert (found.body, found.type, found.error, len(found.reason)) == (b"\0\xff", "\ufffd", "e\ufffd", 500)
    assert (len(found.queue), found.message_id) == (255, "m" * 255)
    assert found.headers == {
        "\ufffd": "\ufffd",
        "bytes": "\ufffd\ufffd",
        "when": str(DIED),
        "nan": "nan",
        "list": [1, "\ufffd"],
    }
    assert await now(database, letter("good"))


async def test_the_widest_letters_fit_everywhere(database: Database) -> None:
    wide = "\U0001f600"
    one = letter(
        "wide",
        bytes(range(256)) * 256,
        **dict.fromkeys(("queue", "exchange", "routing_key", "type", "message_id", "correlation_id"), wide * 255),
        saga=wide * 40,
        instance_id=2**53 - 1,
        reason=wide * 500,
        error=wide * 4000,
        deliveries=2**53 - 1,
        headers={
            wide * 60: wide * 16_000,
            "int": 2**64 - 1,
            "float": 1.5,
            "deep": [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]],
        },
        died_at=datetime(3058, 1, 1, tzinfo=UTC),
    )
    await recorded(database, *(replace(one, id=str(uuid5(NAMESPACE_URL, str(n)))) for n in range(100)), one)
    assert await now(database, one) == one
    async with database.begin() as tx:
        await dead_letters.redriven(tx, [one.id], DIED)
        again = replace(one, died_at=one.died_at + SECOND)
        await dead_letters.record(tx, [again])
    assert await now(database, one) == replace(again, redriven=1)


async def test_whatever_a_client_has_sent_is_examined_kept_and_sent_again(database: Database) -> None:
    catalog = Catalog([APP_PROVISIONING])
    corpses = [parse(one, catalog, DIED) for one in strange_deliveries()]
    letters = {one.dead_letter.id: one.dead_letter for one in corpses}
    await recorded(database, *letters.values())
    async with database.begin() as tx:
        stored = await dead_letters.lock(tx, list(letters))
        assert len(stored) == len(corpses)
        taken = await taken_ids(tx, stored)
        rows = [row_of(one, catalog, DIED, taken=taken, body=b"{}") for one in stored]
        await insert_rows(tx, rows)
        assert await outbox.still_stored(tx, [row.id for row in rows]) == {row.id for row in rows}
        assert await outbox.pending(tx) == len(rows)
    for row in rows:
        assert codec.publish(message_of(row), 1, 4096), "it can be put on the wire"


def strange_deliveries() -> Iterator[Delivery]:
    """What the broker may hand out of dead-letter queues, at its worst."""
    nul, garbage, wide = "\0" * 255, "\ufffd" * 255, "\U0001f600" * 63
    texts: dict[str, Any] = {
        "half": '"\\ud800"',
        "nul": '"\\u0000"',
        "long": f'"{wide * 999}"',
        "list": "[" * 80 + "]" * 80,
    }
    for text in texts.values():
        body = (
            f'{{"id":{text},"saga":{text},"appId":7,"correlationId":{text},"error":{{"type":{text},"message":{text}}}}}'
        )
        yield delivery(body.encode(), routing_key="evt.stepFailed")
    for word in (nul, garbage, wide):
        told: dict[str, object] = {"x-reason": word * 9, "x-routing-key": word, "traceparent": word, "tracestate": word}
        yield delivery(b"\xff\0", message_id=word, correlation_id=word, type=word, headers={**told, word: word})
        yield delivery(b"\xff\0", queue="orchestrator.unrouted", exchange=word[:60], routing_key=word[:60])
    for id in ("m-1", "m-1 ", "M-1", "m-1\0", "é", "e\u0301"):  # not all databases would tell them apart
        yield delivery(id.encode(), message_id=id)
    death = {"queue": CREATED, "reason": nul, "time": 2**35 - 1, "routing-keys": [nul], "count": 2**64 - 1}
    yield delivery(b"", headers={"x-death": [death, b"\xff", None], "deep": {"a": [{"b": math.nan, "c": 1.7e308}]}})
    yield delivery(b'{"a":' * 100_000)


def delivery(body: bytes, **more: Any) -> Delivery:
    """A dead event."""
    fields: dict[str, Any] = {
        "queue": f"{CREATED}.dead",
        "exchange": "orchestrator.dead",
        "routing_key": CREATED,
        "message_id": None,
        "correlation_id": None,
        "type": None,
        "headers": {},
    }
    return Delivery(body=body, redelivered=False, delivery_count=0, tag=1, session=1, **{**fields, **more})


async def test_one_death_told_twice_is_one(database: Database, peer: Database) -> None:
    first = letter("x", reason="first")
    await recorded(database, first, first)
    await recorded(peer, replace(first, reason="second", recorded_at=first.recorded_at + SECOND), letter("y"))
    assert await now(database, first) == first
    await redriven(database, first)
    await recorded(peer, first)
    found = await now(database, first)
    assert found is not None
    assert found.redriven_at is not None, "told late, when it had been redriven"
    assert len(await ids(database, ALL)) == 2


async def test_who_dies_again_is_open_again(database: Database) -> None:
    first, other = letter("x", reason="first"), letter("y")
    await recorded(database, first, other)
    async with database.begin() as tx:
        await dead_letters.edit(tx, letter("x", b'{"better":1}', edited_at=DIED + SECOND))
    await redriven(database, first, other)
    assert await ids(database, DeadLetterFilter()) == []
    died = DIED + timedelta(hours=2)
    again = letter("x", b'{"better":1}', reason="second", error="why", deliveries=20, headers={}, died_at=died)
    await recorded(database, again)
    assert await ids(database, DeadLetterFilter()) == [first.id]
    assert await now(database, first) == replace(again, redriven=1, edited_at=DIED + SECOND)


async def test_who_was_redriven_and_died_within_a_second_is_not_lost(database: Database) -> None:
    first = letter("x", recorded_at=DIED)
    await recorded(database, first)
    await redriven(database, first, at=DIED + SECOND / 2)
    await recorded(database, replace(first, recorded_at=DIED + SECOND))
    assert await ids(database, DeadLetterFilter()) == [first.id]


async def test_pages_have_no_gaps_and_no_repeats_among_equal_times(database: Database) -> None:
    letters = [letter(f"n{place}", died_at=DIED + SECOND * (place // 9)) for place in range(23)]
    await recorded(database, *letters)
    seen: list[DeadLetter] = []
    async with database.read() as connection:
        after = None
        while chunk := await dead_letters.page(connection, ALL, 4, after):
            seen += chunk
            after = chunk[-1].died_at, chunk[-1].id
    assert seen == sorted(letters, key=lambda one: (one.died_at, one.id), reverse=True)


async def test_filters_narrow_together(database: Database) -> None:
    app = letter("a", saga="app", instance_id=1, reason="too-large: 5")
    order = letter("b", saga="order", instance_id=1, queue="other", reason="too_large")
    again = letter("c", saga="app", instance_id=1, reason="Too-large", died_at=DIED + SECOND)
    await recorded(database, app, order, again, letter("d", saga="app", instance_id=2))
    await redriven(database, again)
    of_app = DeadLetterFilter(saga="app", instance_id=1)
    assert await ids(database, of_app) == [app.id]
    assert await ids(database, replace(of_app, open_only=False)) == [again.id, app.id]
    assert await ids(database, replace(of_app, queue="other")) == []
    assert await ids(database, DeadLetterFilter(queue="other")) == [order.id]
    assert await ids(database, replace(ALL, reason="too-")) == [app.id]
    assert await ids(database, replace(ALL, reason="too_")) == [order.id]
    assert await ids(database, replace(ALL, reason="%")) == []
    async with database.read() as connection:
        assert [one.id for one in await dead_letters.of_instance(connection, "app", 1)] == [app.id, again.id]
        assert [one.id for one in await dead_letters.of_instance(connection, "app", 1, 1)] == [again.id]
        assert await dead_letters.of_instance(connection, "order", 2) == []


async def test_open_letters_are_found_that_are_about_instances_of_a_saga(database: Database) -> None:
    app: dict[str, Any] = {"saga": "app", "instance_id": 1}
    first, again = letter("a", **app), letter("b", **app, died_at=DIED + SECOND)
    sent, other_queue = letter("c", **app), letter("d", **app, queue="evt.other")
    others = letter("e", saga="order", instance_id=1), letter("f", saga="app"), letter("g")
    await recorded(database, first, again, sent, other_queue, *others)
    await redriven(database, sent)
    async with database.read() as connection:
        found = await dead_letters.about(connection, "app", [QUEUE], 10)
        assert found == [(1, QUEUE, again.id), (1, QUEUE, first.id)]
        assert await dead_letters.about(connection, "app", [QUEUE], 1) == found[:1]
        assert await dead_letters.about(connection, "app", ["evt.other", QUEUE], 1) == found[:1]
        assert await dead_letters.about(connection, "app", [], 10) == []
        assert {one.id for one in await dead_letters.several(connection, [first.id, sent.id, "x"])} == {
            first.id,
            sent.id,
        }
        assert await dead_letters.several(connection, []) == []
        wanted = [("app", 1), ("app", 2), ("order", 2), ("other", 1)]
        assert await dead_letters.owners(connection, wanted) == {("app", 1)}
        assert await dead_letters.owners(connection, [("order", 1), ("app", 3)]) == {("order", 1)}
        assert await dead_letters.owners(connection, []) == set()
    await redriven(database, first, again, other_queue)
    async with database.read() as connection:
        assert await dead_letters.owners(connection, wanted) == set()


async def test_an_edited_letter_has_another_body(database: Database) -> None:
    before, other = letter("x", saga="app", instance_id=1, correlation_id="c-1", message_id="m-1"), letter("y")
    await recorded(database, before, other)
    edited = DIED + timedelta(hours=1)
    said: dict[str, Any] = {"saga": "order", "instance_id": 2, "correlation_id": "c\0" + "2" * 300, "edited_at": edited}
    async with database.begin() as tx:
        assert await dead_letters.lock_one(tx, before.id) == before
        await dead_letters.edit(tx, letter("x", b'{"a":1}', message_id="m-2", reason="mended", **said))
        with pytest.raises(Invalid, match="65536"):
            await dead_letters.edit(tx, letter("x", b"x" * (KEPT_BODY_BYTES + 1), **said))
    body, size, digest = kept(b'{"a":1}')
    after = replace(before, body=body, body_size=size, body_sha256=digest, **said)
    assert await now(database, before) == replace(after, correlation_id="c\ufffd" + "2" * 253)
    assert await now(database, other) == other


async def test_how_often_a_letter_was_redriven_is_counted(database: Database) -> None:
    one, other = letter("x"), letter("y")
    await recorded(database, one, other)
    await redriven(database, one)
    await redriven(database, one, other, at=DIED + timedelta(hours=2))
    await redriven(database)
    found = [await now(database, each) for each in (one, other)]
    assert [(each.redriven, each.redriven_at) for each in found if each] == [
        (2, DIED + timedelta(hours=2)),
        (1, DIED + timedelta(hours=2)),
    ]


async def test_a_letter_that_the_broker_would_not_take_is_open_again_and_says_why(database: Database) -> None:
    one, other = letter("x"), letter("y")
    await recorded(database, one, other)
    await redriven(database, one)
    await redriven(database, one, other)
    among = f"{one.id[:19]}0000-000000000000", f"{one.id[:19]}ffff-ffffffffffff"
    async with database.begin() as tx:
        assert not await dead_letters.refused(tx, among, 1, "an older copy")
        assert await dead_letters.refused(tx, among, 2, "too large\0" + "x" * 5000)
        assert not await dead_letters.refused(tx, among, 2, "told again")
        assert not await dead_letters.refused(tx, (other.id, other.id), 0, "was never sent")
    assert await ids(database, DeadLetterFilter()) == [one.id]
    assert await now(database, one) == replace(one, redriven=2, error=("too large\ufffd" + "x" * 5000)[:4000])


async def test_dropped_letters_are_counted_and_gone(database: Database) -> None:
    letters = [letter(f"n{place}") for place in range(3)]
    await recorded(database, *letters)
    async with database.begin() as tx:
        assert [one.id for one in await dead_letters.lock(tx, [one.id for one in letters])] == sorted(
            one.id for one in letters
        )
        assert await dead_letters.drop(tx, [letters[0].id, letters[1].id, "unknown"]) == 2
        assert await dead_letters.drop(tx, []) == 0
        assert await dead_letters.lock(tx, []) == []
        assert await dead_letters.lock_one(tx, letters[0].id) is None
    assert await ids(database, ALL) == [letters[2].id]
