"""Are instances inserted, changed and found as asked, many at a time?"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from orchestrix.errors import Invalid
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.instances import TimerUpdate
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables, saga_tables_of
from orchestrix.saga.commands import NEVER
from orchestrix.saga.state import DEADLINE, Instance, InstanceProgress
from tests.conformance.store.build import ended, some, started, stepped, stored

Of = tuple[SagaTables, str]
TROUBLED = InstanceProgress(
    {"createGitRepo": 2, "createGitRepo:undo": 1},
    ("m-1", "m-2"),
    unanswered=True,
    error='503 "gone" é 😀',
    todo=("registerApp",),
    undone=("x",),
    awaited="createGitRepo",
    held={"type": "Forge", "retryable": False, "after": None},
    resume="retry",
)


async def current(database: Database, pair: SagaTables, id: int) -> Instance:
    async with database.read() as connection:
        return (await instances.guard(connection, pair, [id]))[id]


def test_apps_have_tables_of_their_own() -> None:
    assert saga_tables_of("app") is APPS
    assert saga_tables_of("order") is INSTANCES


async def test_an_instance_comes_back_as_it_went_in(database: Database, of: Of) -> None:
    pair, saga = of
    moved = started("billing", saga)
    more: dict[str, Any] = {
        "tries": 3,
        "deadline_at": moved.instance.created_at + timedelta(days=1),
        "progress": TROUBLED,
    }
    instance = replace(moved.instance, traceparent="00-ab-cd-01", tracestate="a=b", **more)
    moved = replace(moved, instance=instance)
    (found,) = await stored(database, pair, [moved])
    assert found == replace(moved.instance, id=found.id)


async def test_ids_come_in_the_order_asked_for(database: Database, of: Of) -> None:
    pair, saga = of
    found = await stored(database, pair, [started(name, saga) for name in ("c", "a", "b")])
    assert [instance.key for instance in found] == ["c", "a", "b"]


async def test_a_taken_name_gives_no_id_and_the_first_of_two_wins(database: Database, of: Of) -> None:
    pair, saga = of
    (before,) = await stored(database, pair, [started("taken", saga, by="ada")])
    async with database.begin() as tx:
        moves = [started(name, saga, by="bob") for name in ("new", "taken", "new")]
        new, *others = await instances.insert(tx, pair, moves)
        assert new is not None
        assert others == [None, None]
        assert await instances.insert(tx, pair, [moves[0]]) == [None]
        assert await instances.insert(tx, pair, []) == []
    assert await current(database, pair, before.id) == before
    assert (await current(database, pair, new)).command_id == moves[0].instance.command_id


async def test_two_sagas_can_use_one_name(database: Database) -> None:
    one, other = await stored(database, INSTANCES, [started("x", "order"), started("x", "refund")])
    async with database.read() as connection:
        assert await instances.by_key(connection, INSTANCES, "order", "x") == one
        assert await instances.by_key(connection, INSTANCES, "refund", "x") == other
        assert await instances.get(connection, INSTANCES, "refund", one.id) is None
        assert await instances.get(connection, INSTANCES, "refund", other.id) == other
        assert await instances.by_key(connection, APPS, "order", "x") is None


async def test_five_hundred_rows_change_in_one_statement(database: Database, of: Of) -> None:
    pair, saga = of
    begun = await some(database, 500, pair, saga)
    async with database.begin() as tx:
        locked = await instances.lock(tx, pair, [instance.id for instance in reversed(begun)])
        assert [instance.id for instance in locked] == sorted(instance.id for instance in begun)
        changed = [
            (one.version, stepped(one, 1 + place % 3, state="REGISTERING", data={"place": place}))
            for place, one in enumerate(locked)
        ]
        assert await instances.update(tx, pair, changed) == {one.id for one in locked}
    async with database.read() as connection:
        found = await instances.guard(connection, pair, [one.id for one in locked])
        versions = await instances.versions(connection, pair, list(found))
    assert found == {one.id: one for _, one in changed}
    assert versions == {one.id: one.version for _, one in changed}


async def test_everything_that_moves_is_written(database: Database, of: Of) -> None:
    pair, saga = of
    (before,) = await some(database, 1, pair, saga)
    later = before.created_at + timedelta(seconds=1, microseconds=1)
    after = stepped(
        before,
        state="GIT_REPO_CREATED",
        command_id="other",
        attempt=3,
        wake_at=later + timedelta(hours=1),
        wake_reason="retry",
        wait_ms=2**40,
        data={"repo": "x"},
        updated_at=later,
        tries=3,
        deadline_at=later + timedelta(days=1),
        progress=TROUBLED,
    )
    blocked = stepped(after, wake_at=None, wake_reason=None, blocker="paused")
    over = ended(replace(blocked, blocker=None, deadline_at=None, progress=InstanceProgress()))
    for earlier, now in ((before, after), (after, blocked), (blocked, over)):
        async with database.begin() as tx:
            assert await instances.update(tx, pair, [(earlier.version, now)]) == {before.id}
        assert await current(database, pair, before.id) == now


async def test_where_nothing_went_wrong_there_is_no_progress(database: Database, of: Of) -> None:
    pair, saga = of
    same, cleared, kept = await some(database, 3, pair, saga)
    changed = [(1, stepped(same)), (1, stepped(cleared, progress=TROUBLED)), (1, stepped(kept, progress=TROUBLED))]
    async with database.begin() as tx:
        await instances.update(tx, pair, changed)
        await instances.update(tx, pair, [(2, stepped(cleared, 2, progress=InstanceProgress()))])
        table = pair.instances.c
        found = await tx.execute(select(table.id).where(table.progress.is_(None)))
        assert set(found.scalars()) == {same.id, cleared.id}, "an empty one is NULL, and not the JSON null"


@pytest.mark.req("S3-52")
async def test_of_two_changes_of_one_version_one_is_refused(database: Database, peer: Database, of: Of) -> None:
    pair, saga = of
    one, other = await some(database, 2, pair, saga)
    async with peer.begin() as tx:
        assert await instances.update(tx, pair, [(1, stepped(one, state="REGISTERING"))]) == {one.id}
    async with database.begin() as tx:
        late = [(1, stepped(one, state="GIT_REPO_CREATED")), (1, stepped(other, state="GIT_REPO_CREATED"))]
        assert await instances.update(tx, pair, late) == {other.id}
    assert (await current(database, pair, one.id)).state == "REGISTERING"
    assert (await current(database, pair, other.id)).state == "GIT_REPO_CREATED"


ILLEGAL: list[dict[str, Any]] = [
    {"wake_at": None, "wake_reason": None},
    {"blocker": "paused"},
    {"wake_at": None},
    {"wake_reason": None},
    {"state": "COMPLETED"},
    {"state": "FAILED", "wake_at": None, "wake_reason": None, "blocker": "paused"},
]


@pytest.mark.parametrize("changes", ILLEGAL, ids=lambda changes: "-".join(changes))
async def test_a_row_that_would_be_stuck_is_refused(database: Database, of: Of, changes: dict[str, Any]) -> None:
    pair, saga = of
    (before,) = await some(database, 1, pair, saga)
    with pytest.raises(Invalid):
        async with database.begin() as tx:
            await instances.update(tx, pair, [(1, stepped(before, **changes))])
    assert await current(database, pair, before.id) == before
    new = started("new", saga)
    with pytest.raises(Invalid):
        async with database.begin() as tx:
            await instances.insert(tx, pair, [replace(new, instance=replace(new.instance, **changes))])


async def test_a_wake_up_moves_only_while_nothing_else_has(database: Database, of: Of) -> None:
    pair, saga = of
    free, moved, blocked, over = await some(database, 4, pair, saga)
    changes = [
        (1, stepped(moved)),
        (1, stepped(blocked, wake_at=None, wake_reason=None, blocker="paused")),
        (1, ended(over)),
    ]
    until = database.now() + timedelta(minutes=5)
    async with database.begin() as tx:
        await instances.update(tx, pair, changes)
        await instances.update_timers(tx, pair, [TimerUpdate(id, 1, until, "unsent", 7) for id in (free.id, moved.id)])
        await instances.update_timers(
            tx, pair, [TimerUpdate(id, 2, until, "unsent", 7) for id in (blocked.id, over.id)]
        )
        await instances.update_timers(tx, pair, [])
    assert await current(database, pair, free.id) == replace(free, wake_at=until, wake_reason="unsent", wait_ms=7)
    for _, unchanged in changes:
        assert await current(database, pair, unchanged.id) == unchanged


async def test_a_doubt_is_written_where_nothing_has_changed(database: Database, of: Of) -> None:
    pair, saga = of
    same, moved, over = await some(database, 3, pair, saga)
    doubt = InstanceProgress(unanswered=True)
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, stepped(moved)), (1, ended(over))])
        await instances.write_progress(tx, pair, [replace(one, progress=doubt) for one in (over, moved, same)])
        await instances.write_progress(tx, pair, [])
    assert await current(database, pair, same.id) == replace(same, progress=doubt)
    assert (await current(database, pair, moved.id)).progress == InstanceProgress()
    assert (await current(database, pair, over.id)).progress == InstanceProgress()


async def test_a_late_confirm_starts_the_time_again(database: Database, of: Of) -> None:
    pair, saga = of
    right, other, retry = await some(database, 3, pair, saga)
    assert right.command_id
    assert retry.command_id
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, stepped(retry, wake_reason="retry"))])
        rows = [(retry.id, retry.command_id, 90_000), (other.id, "older", 90_000), (right.id, right.command_id, 90_000)]
        await instances.confirmed_late(tx, pair, rows)
    now = database.now()
    found = await current(database, pair, right.id)
    assert found.wake_at is not None
    assert abs((found.wake_at - now).total_seconds() - 90) < 5
    assert (found.version, found.wake_reason) == (1, DEADLINE)
    assert await current(database, pair, other.id) == other
    assert (await current(database, pair, retry.id)).wake_at == retry.wake_at


async def test_what_is_due_comes_oldest_first(database: Database, of: Of) -> None:
    pair, saga = of
    now = database.now()
    first, second, third, later = await some(database, 4, pair, saga, now=now)

    def at(instance: Instance, seconds: float) -> TimerUpdate:
        return TimerUpdate(instance.id, 1, now + timedelta(seconds=seconds), DEADLINE, 1)

    async with database.begin() as tx:
        await instances.update_timers(tx, pair, [at(first, -30), at(third, -10), at(second, -20), at(later, 600)])
    async with database.begin() as tx:
        found = await instances.due(tx, pair, [saga, "unknown"], 2)
        assert [instance.id for instance in found] == [first.id, second.id]
        assert await instances.due(tx, pair, ["unknown"], 2) == []
        assert await instances.due(tx, pair, [], 2) == []
        assert len(await instances.due(tx, pair, [saga], 10)) == 3


async def test_the_next_wake_up_is_told_in_seconds(database: Database, of: Of) -> None:
    pair, saga = of
    async with database.read() as connection:
        assert await instances.next_wake(connection, pair, [saga]) is None
    one, other = await some(database, 2, pair, saga)
    async with database.read() as connection:
        assert await instances.next_wake(connection, pair, [saga]) == pytest.approx(60, abs=5)
        assert await instances.next_wake(connection, pair, ["unknown"]) is None
    async with database.begin() as tx:
        await instances.update_timers(
            tx, pair, [TimerUpdate(one.id, 1, database.now() - timedelta(seconds=9), DEADLINE, 1)]
        )
    async with database.read() as connection:
        assert await instances.next_wake(connection, pair, [saga]) == pytest.approx(-9, abs=5)
    assert other.wake_at is not None


async def test_what_is_owed_comes_in_chunks(database: Database, of: Of) -> None:
    pair, saga = of
    begun = await some(database, 7, pair, saga)
    paused = stepped(begun[1], wake_at=None, wake_reason=None, blocker="paused")
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, ended(begun[0])), (1, paused), (1, stepped(begun[2], command_id=None))])
    seen: list[int] = []
    async with database.read() as connection:
        while chunk := await instances.to_redispatch(connection, pair, [saga], seen[-1] if seen else 0, 3):
            seen += [instance.id for instance in chunk]
        assert await instances.to_redispatch(connection, pair, ["unknown"], 0, 3) == []
    assert seen == [instance.id for instance in begun[3:]]


async def test_what_has_failed_owes_the_undo_of_what_came_too_late(database: Database, of: Of) -> None:
    pair, saga = of
    one, other = await some(database, 2, pair, saga)
    late = replace(ended(one), state="FAILED", command_id=one.command_id)
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, late), (1, replace(ended(other), state="FAILED"))])
    async with database.read() as connection:
        assert [each.id for each in await instances.to_redispatch(connection, pair, [saga], 0, 3)] == [one.id]


async def test_nothing_asked_for_is_nothing_found(database: Database, of: Of) -> None:
    pair, _ = of
    async with database.begin() as tx:
        assert await instances.lock(tx, pair, []) == []
        assert await instances.lock(tx, pair, [4711]) == []
        assert await instances.lock_one(tx, pair, 4711) is None
        assert await instances.update(tx, pair, []) == set()
        assert await instances.guard(tx, pair, []) == {}
        assert await instances.versions(tx, pair, []) == {}


async def test_times_are_kept_to_the_microsecond(database: Database) -> None:
    now = datetime.fromisoformat("2026-03-29T03:00:00.000001+02:00")
    (found,) = await stored(database, APPS, [started("x", now=now)])
    assert found.created_at == now
    assert found.created_at.isoformat() == "2026-03-29T01:00:00.000001+00:00"


async def test_coming_wake_ups_are_listed_the_soonest_first(database: Database, of: Of) -> None:
    pair, saga = of
    begun = await some(database, 9, pair, saga)
    at = begun[0].created_at + timedelta(hours=1)
    changed = [stepped(one, wake_at=at + timedelta(hours=place // 3)) for place, one in enumerate(reversed(begun[:6]))]
    unlisted = [
        stepped(begun[6], wake_at=NEVER),
        stepped(begun[7], wake_at=None, wake_reason=None, blocker="paused"),
        ended(begun[8]),
    ]
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, one) for one in changed + unlisted])
    seen: list[Instance] = []
    async with database.read() as connection:
        after = None
        while chunk := await instances.deadlines(connection, pair, [saga, "other"], 2, after):
            seen += chunk
            assert chunk[-1].wake_at
            after = chunk[-1].wake_at, chunk[-1].id
        assert await instances.deadlines(connection, pair, ["other"], 2) == []
        assert await instances.deadlines(connection, pair, [], 2) == []
    assert seen == sorted(changed, key=lambda one: (one.wake_at, one.id))
