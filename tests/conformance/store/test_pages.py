"""Does a list show each instance that fits once, in order, page by page?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from orchestrix import clock
from orchestrix.errors import Invalid
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.blocked_job_steps import UnservedJobs
from orchestrix.persistence.sagas import instance_pages, instances
from orchestrix.persistence.sagas.instances import InstanceFilter, sort_value
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.persistence.sagas.stuck_filter import ExternalBlockers
from orchestrix.saga.state import Instance
from tests.conformance.store.build import ended, some, started, stepped, stored
from tests.conformance.store.test_jobs import pending

Of = tuple[SagaTables, str]
SORTS = ["createdAt", "-createdAt", "updatedAt", "-updatedAt", "appName", "-appName"]


async def names(
    database: Database, pair: SagaTables, saga: str, wanted: InstanceFilter, sort: str = "key"
) -> list[str]:
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
        while chunk := await instances.page(connection, pair, saga, InstanceFilter(), sort, 4, after):
            seen += chunk
            after = sort_value(sort, chunk[-1]), chunk[-1].id
    assert len(seen) == len(begun)
    assert seen == sorted(begun, key=lambda one: (sort_value(sort, one), one.id), reverse=sort.startswith("-"))


@pytest.mark.parametrize(
    ("sort", "near", "far", "many"),
    [
        ("-createdAt", 1, 1, 0),
        ("createdAt", 1, 7, 0),
        ("-createdAt", 2, 30, 1000),
        ("-updatedAt", 7, 7, 0),
        ("-appName", 7, 7, 0),
    ],
)
async def test_filters_hold_on_every_page(
    database: Database, of: Of, sort: str, near: int, far: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SHORT_SCAN_ROWS": near, "LONG_SCAN_ROWS": far, "NAME_INDEX_SCAN_LIMIT": many}.items():
        monkeypatch.setattr(instance_pages, name, value)
    pair, saga = of
    now = clock.now()
    moves = [
        started(f"{'ab'[place % 2]}{place:02}", saga, now=now + timedelta(seconds=place // 3), by="xyz"[place % 3])
        for place in range(40)
    ]
    begun = await stored(database, pair, moves)
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, ended(one, state="FAILED")) for one in begun[::5]])
    states, by = ("FAILED", "INITIATED", "APP_INITIATED", "GIT_REPO_CREATED"), "x"
    for wanted in (
        InstanceFilter(states),
        InstanceFilter(prefix="a"),
        InstanceFilter(states, by, prefix="a"),
        InstanceFilter(("FAILED",), prefix="b3"),
    ):
        expected = [one for one in await every(database, pair, saga, InstanceFilter(), sort, 100) if fits(one, wanted)]
        assert await every(database, pair, saga, wanted, sort, 3) == expected


async def test_a_server_guesses_how_many_names_begin_so(database: Database, of: Of) -> None:
    pair, saga = of
    await some(database, 6, pair, saga)
    async with database.read() as connection:
        guess = await database.dialect.about(connection, select(pair.instances.c.id))
    assert guess is None if database.dialect.name == "sqlite" else guess is not None and guess > 0


def fits(one: Instance, wanted: InstanceFilter) -> bool:
    """What a filter means."""
    return (
        (not wanted.states or one.state in wanted.states)
        and wanted.created_by in (None, one.created_by)
        and one.key.startswith(wanted.prefix or "")
    )


async def every(
    database: Database, pair: SagaTables, saga: str, wanted: InstanceFilter, sort: str, limit: int
) -> list[Instance]:
    """All pages, one after the other."""
    found: list[Instance] = []
    after = None
    async with database.read() as connection:
        while chunk := await instances.page(connection, pair, saga, wanted, sort, limit, after):
            found += chunk
            after = sort_value(sort, chunk[-1]), chunk[-1].id
    return found


async def test_a_page_stays_where_it_is_while_rows_are_added(database: Database, of: Of) -> None:
    pair, saga = of
    begun = await some(database, 6, pair, saga)
    async with database.read() as connection:
        first = await instances.page(connection, pair, saga, InstanceFilter(), "-createdAt", 3)
    await stored(database, pair, [started("newer", saga, now=clock.now() + timedelta(seconds=1))])
    after = first[-1].created_at, first[-1].id
    async with database.read() as connection:
        second = await instances.page(connection, pair, saga, InstanceFilter(), "-createdAt", 3, after)
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
    assert await names(database, pair, saga, InstanceFilter(states=["COMPLETED", "FAILED"])) == ["n0", "n2"]
    assert await names(database, pair, saga, InstanceFilter(created_by="b")) == ["n1", "n3", "n5"]
    assert await names(database, pair, saga, InstanceFilter(created_by="B")) == []
    between = InstanceFilter(created_after=begun[1].created_at, created_before=begun[4].created_at)
    assert await names(database, pair, saga, between) == ["n2", "n3"]
    assert await names(database, pair, saga, InstanceFilter(states=["REGISTERING"], created_by="b", prefix="n3")) == [
        "n3"
    ]
    assert await names(database, pair, saga, InstanceFilter(states=["REGISTERING"], created_by="a")) == []


async def stuck_and_others(database: Database, pair: SagaTables, saga: str) -> list[str]:
    """Names of those that are stuck, among others."""
    changes: dict[str, dict[str, Any]] = {
        "a-person": {"wake_at": None, "wake_reason": None, "blocker": "paused"},
        "a-undo": {"wake_at": None, "wake_reason": None, "blocker": "undo_failed", "state": "COMPENSATION_FAILED"},
        "b-unsent": {"wake_reason": "unsent"},
        "b-broker": {"wake_reason": "broker_down", "state": "REGISTERING"},
        "b-nobody": {"wake_reason": "no_consumer"},
        "a-waits": {},
        "b-retries": {"wake_reason": "retry"},
    }
    begun = await stored(database, pair, [started(name, saga) for name in [*changes, "a-over"]])
    rows = [(1, stepped(one, **changes[one.key])) for one in begun[:-1]]
    async with database.begin() as tx:
        await instances.update(tx, pair, [*rows, (1, ended(begun[-1]))])
    return sorted(list(changes)[:5])


@pytest.mark.parametrize("sort", ["createdAt", "-updatedAt", "key"])
async def test_the_stuck_are_those_that_wait_for_more_than_their_worker(database: Database, of: Of, sort: str) -> None:
    pair, saga = of
    stuck = await stuck_and_others(database, pair, saga)
    assert sorted(await names(database, pair, saga, InstanceFilter(stuck=True), sort)) == stuck
    others = ["a-over", "a-waits", "b-retries"]
    assert sorted(await names(database, pair, saga, InstanceFilter(stuck=False), sort)) == others
    two = InstanceFilter(("REGISTERING", "COMPENSATION_FAILED", "COMPLETED"), stuck=True)
    assert sorted(await names(database, pair, saga, two, sort)) == ["a-undo", "b-broker"]
    assert sorted(await names(database, pair, saga, InstanceFilter(prefix="a-", stuck=True), sort)) == [
        "a-person",
        "a-undo",
    ]
    assert await names(database, pair, saga, InstanceFilter(prefix="a-", stuck=False), sort) in (
        others[:2],
        others[1::-1],
    )
    assert await names(database, pair, saga, InstanceFilter(created_by="nobody", stuck=True), sort) == []
    every_one = await every(database, pair, saga, InstanceFilter(stuck=True), sort, 2)
    assert [one.key for one in every_one] == await names(database, pair, saga, InstanceFilter(stuck=True), sort)


@pytest.mark.parametrize("sort", ["createdAt", "-updatedAt", "key"])
async def test_what_is_held_up_from_outside_is_stuck_too(database: Database, of: Of, sort: str) -> None:
    pair, saga = of
    rows = {one.key: one for one in await with_progress(database, pair, saga)}
    told = ExternalBlockers(["REGISTERING"], [rows["by-id"].id, rows["b-id"].id, rows["b-over"].id])
    held = ["b-id", "b-register", "b-undone", "by-id"]
    assert sorted(await names(database, pair, saga, InstanceFilter(stuck=True, blockers=told), sort)) == [
        "a-person",
        *held,
    ]
    assert (
        sorted(await names(database, pair, saga, InstanceFilter(prefix="b", stuck=True, blockers=told), sort)) == held
    )
    two = InstanceFilter(("REGISTERING", "COMPLETED"), stuck=True, blockers=told)
    assert sorted(await names(database, pair, saga, two, sort)) == ["a-person", "b-register"]
    every_one = await every(database, pair, saga, InstanceFilter(stuck=True, blockers=told), sort, 2)
    assert [one.key for one in every_one] == await names(
        database, pair, saga, InstanceFilter(stuck=True, blockers=told), sort
    )
    others = {"a-retries", "a-undone", "a-waits", "b-over"}
    found = await names(database, pair, saga, InstanceFilter(stuck=False, blockers=told), sort)
    assert set(found) == others


async def test_the_newest_stuck_of_several_sagas_are_found_at_once(database: Database) -> None:
    other = await some(database, 4, INSTANCES, "other")
    order = await some(database, 4, INSTANCES, "order")
    await some(database, 2, INSTANCES, "unknown")
    named, by_state, late = other[0].id, stepped(order[1], state="REGISTERING"), database.now() - timedelta(minutes=1)
    async with database.begin() as tx:
        held = stepped(order[0], blocker="paused", wake_at=None, wake_reason=None)
        unread = stepped(other[1], hindered_by="no_consumer")
        overdue = [
            stepped(one, wake_at=late, hindered_by=by) for one, by in ((order[2], "no_consumer"), (other[2], None))
        ]
        await instances.update(tx, INSTANCES, [(1, one) for one in (held, unread, by_state, *overdue)])
    before = late + timedelta(seconds=1)
    blockers = {
        "order": ExternalBlockers(["REGISTERING"], overdue_since=before),
        "other": ExternalBlockers(ids=[named], overdue_since=before),
    }
    expected = sorted([*order[:3], *other[:3]], key=lambda one: (one.created_at, one.id), reverse=True)
    async with database.read() as connection:
        found = await instances.newest_stuck(connection, INSTANCES, blockers, 10, None)
        assert [one.id for one in found] == [one.id for one in expected]
        after = found[1].created_at, found[1].id
        rest = await instances.newest_stuck(connection, INSTANCES, blockers, 3, after)
        assert rest == found[2:5]
        assert await instances.newest_stuck(connection, INSTANCES, {}, 3, None) == []


LATE = timedelta(seconds=15)


async def many_held_up(database: Database, pair: SagaTables, saga: str) -> tuple[ExternalBlockers, list[str]]:
    """What holds up too many to be named, and the names of all that are stuck by it or otherwise."""
    await database.ping()
    now = database.now()
    late, soon = {"wake_at": now - LATE - timedelta(seconds=1)}, {"wake_at": now + LATE}
    undoing: dict[str, Any] = {"state": "COMPENSATING"}
    unread: dict[str, Any] = {"hindered_by": "no_consumer"}
    changes: dict[str, dict[str, Any]] = {
        "held-by-a-person": {"wake_at": None, "wake_reason": None, "blocker": "paused"},
        "held-by-id": soon,
        "held-by-job": {**soon, "wake_reason": "job"},
        "held-by-job-and-late": {**late, "wake_reason": "job"},
        "held-by-job-and-id": {**soon, "wake_reason": "job"},
        "held-by-time": late,
        "held-by-time-and-id": late,
        "held-by-time-and-state": {**late, "state": "REGISTERING"},
        "held-by-time-of-retry": {**late, "wake_reason": "retry"},
        "held-by-time-while-undone": {**late, **undoing},
        "held-by-state": {**soon, "state": "REGISTERING"},
        "held-by-queue": {**soon, **undoing, **unread},
        "held-by-queue-and-id": {**soon, **unread},
        "held-by-queue-and-state": {**soon, **unread, "state": "REGISTERING"},
        "held-by-queue-and-time": {**late, **unread, "wake_reason": "backlog"},
        "moves": soon,
        "moves-with-a-job": {**soon, "wake_reason": "job"},
        "moves-with-a-served-job": {**soon, "wake_reason": "job"},
        "moves-with-a-young-job": {**soon, "wake_reason": "job"},
        "moves-with-another-job": {**soon, "wake_reason": "job"},
        "moves-while-undone": {**soon, **undoing},
        "moves-behind-others": {**soon, "wake_reason": "backlog", "hindered_by": "backlog"},
        "moves-and-retries": {**soon, **unread, "wake_reason": "retry"},
        "moves-soon": {"wake_at": now - LATE + timedelta(seconds=1)},
    }
    names = [*changes, "over"]
    ids = {name: clock.uuid7() for name in names}
    begun = {one.key: one for one in await stored(database, pair, [started(name, saga) for name in names])}
    rows = [(1, stepped(begun[name], command_id=ids[name], **change)) for name, change in changes.items()]
    async with database.begin() as tx:
        await instances.update(tx, pair, [*rows, (1, ended(begun["over"]))])
        waits: dict[str, Any] = {"dispatched_at": now - LATE, "state": "DISPATCHED", "saga": saga}
        made: dict[str, dict[str, Any]] = {
            "held-by-job": {},
            "held-by-job-and-late": {},
            "held-by-job-and-id": {},
            "moves-with-a-served-job": {"queue": "served"},
            "moves-with-a-young-job": {"dispatched_at": now},
            "moves-with-another-job": {"id": clock.uuid7()},
        }
        some = [{"id": ids[name], "instance_id": begun[name].id, **waits, **more} for name, more in made.items()]
        await jobs.insert(tx, [pending(database, **one) for one in some])
    named = [
        begun[name].id for name in ("held-by-id", *(f"held-by-{by}-and-id" for by in ("job", "time", "queue")), "over")
    ]
    which = UnservedJobs(saga, {"DISPATCHED": now - LATE / 2}, ["served"])
    told = ExternalBlockers(["REGISTERING"], named, now - LATE, which)
    return told, [name for name in names if name.startswith("held")]


@pytest.mark.parametrize(
    ("sort", "near", "far"), [("-createdAt", 1, 2), ("createdAt", 3, 9), ("-updatedAt", 1, 1), ("key", 1, 1)]
)
async def test_what_is_held_up_in_too_many_cases_to_be_named_is_found_all_the_same(
    database: Database, of: Of, sort: str, near: int, far: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SHORT_SCAN_ROWS": near, "LONG_SCAN_ROWS": far}.items():
        monkeypatch.setattr(instance_pages, name, value)
    pair, saga = of
    told, held = await many_held_up(database, pair, saga)
    all_of_them = await every(database, pair, saga, InstanceFilter(), sort, 100)
    for limit in (1, 4, 100):
        found = await every(database, pair, saga, InstanceFilter(stuck=True, blockers=told), sort, limit)
        assert found == [one for one in all_of_them if one.key in held], limit
    others = await every(database, pair, saga, InstanceFilter(stuck=False, blockers=told), sort, 3)
    assert {one.key for one in others} == {one.key for one in all_of_them} - set(held)
    states = InstanceFilter(("REGISTERING", "COMPENSATING", "COMPLETED"), stuck=True, blockers=told)
    some = {one.key for one in await every(database, pair, saga, states, sort, 2)}
    assert some == {
        "held-by-time-and-state",
        "held-by-time-while-undone",
        "held-by-state",
        "held-by-queue",
        "held-by-queue-and-state",
    }
    prefix = InstanceFilter(prefix="held-by-time-", created_by="ada", stuck=True, blockers=told)
    assert len(await every(database, pair, saga, prefix, sort, 2)) == 4


async def with_progress(database: Database, pair: SagaTables, saga: str) -> list[Instance]:
    """Instances in all kinds of waits."""
    undoing: dict[str, Any] = {"state": "COMPENSATING"}
    changes: dict[str, dict[str, Any]] = {
        "a-person": {"wake_at": None, "wake_reason": None, "blocker": "paused", "state": "REGISTERING"},
        "a-retries": {"wake_reason": "retry", "state": "REGISTERING", "hindered_by": "no_consumer"},
        "a-undone": {**undoing, "hindered_by": "backlog"},
        "a-waits": {},
        "b-id": undoing,
        "b-register": {"state": "REGISTERING"},
        "b-undone": {**undoing, "hindered_by": "no_consumer"},
        "by-id": {},
    }
    begun = await stored(database, pair, [started(name, saga) for name in [*changes, "b-over"]])
    rows = [(1, stepped(one, **changes[one.key])) for one in begun[:-1]]
    async with database.begin() as tx:
        await instances.update(tx, pair, [*rows, (1, ended(begun[-1]))])
    return begun


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
    assert await names(database, pair, saga, InstanceFilter(prefix=prefix)) == PREFIXES[prefix]
    assert await names(database, pair, saga, InstanceFilter(prefix="")) == every


async def test_an_unknown_sort_is_refused(database: Database) -> None:
    with pytest.raises(Invalid, match="sort"):
        await names(database, APPS, "app", InstanceFilter(), "state")


async def test_a_saga_sees_its_own_instances_only(database: Database) -> None:
    await stored(database, INSTANCES, [started("x", "order"), started("y", "refund")])
    assert await names(database, INSTANCES, "order", InstanceFilter()) == ["x"]
    assert await names(database, INSTANCES, "refund", InstanceFilter(prefix="x")) == []
