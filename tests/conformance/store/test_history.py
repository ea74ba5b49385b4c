"""Does the history tell each version of each instance once?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from orchestrix.errors import ConflictError, Invalid
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import history
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.saga.state import Instance, StateChange
from tests.conformance.store.build import some

Of = tuple[SagaTables, str]


def change(instance: Instance, version: int, reason: str = "why") -> StateChange:
    source = None if version == 1 else f"STATE_{version - 1}"
    at = instance.created_at
    return StateChange(version, source, f"STATE_{version}", reason, "ada", "c-1", "event-1", "command-1", at)


@pytest.mark.req("S3-37", "S3-46")
async def test_an_instance_has_many_rows_in_the_order_of_its_versions(database: Database, of: Of) -> None:
    pair, saga = of
    one, other = await some(database, 2, pair, saga)
    told = [(one.id, change(one, version)) for version in (3, 1, 4, 2)]
    async with database.begin() as tx:
        await history.insert(tx, pair, [*told, (other.id, change(other, 1))])
        await history.insert(tx, pair, [])
    async with database.read() as connection:
        found = await history.listing(connection, pair, one.id, 0, 10)
        assert found == [change(one, version) for version in (1, 2, 3, 4)]
        assert await history.listing(connection, pair, one.id, 1, 2) == found[1:3]
        assert await history.listing(connection, pair, other.id, 0, 10) == [change(other, 1)]
        assert await history.listing(connection, pair, other.id, 1, 10) == []


@pytest.mark.req("S3-52")
async def test_a_version_is_told_once(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, change(one, 1))])
    with pytest.raises(ConflictError):
        async with database.begin() as tx:
            await history.insert(tx, pair, [(one.id, change(one, 2)), (one.id, change(one, 1, "again"))])
    async with database.read() as connection:
        assert await history.listing(connection, pair, one.id, 0, 10) == [change(one, 1)]


@pytest.mark.req("S3-36")
async def test_history_belongs_to_an_instance(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    with pytest.raises(Invalid):
        async with database.begin() as tx:
            await history.insert(tx, pair, [(one.id + 4711, change(one, 1))])


async def test_what_a_row_is_about_is_kept_beside_its_text(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    failure = replace(
        change(one, 1),
        kind="attempt_failed",
        step="createGitRepo",
        message_type="evt.stepFailed",
        message_id="event-1",
        error_type="OutOfDisk",
        error="OutOfDisk: no space left",
        trace_id="0af7651916cd43dd8448eb211c80319c",
    )
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, failure)])
    async with database.read() as connection:
        assert await history.listing(connection, pair, one.id, 0, 10) == [failure]


async def test_what_a_worker_calls_its_failure_is_stored_whatever_it_is(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    bad = replace(change(one, 1), message_id="id\0" + "x" * 400, error_type="\0\ud800" + "y" * 400, error="a\0b")
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, bad)])
    async with database.read() as connection:
        (found,) = await history.listing(connection, pair, one.id, 0, 10)
    assert found.message_id == "id\ufffd" + "x" * 252
    assert found.error_type == "\ufffd\ufffd" + "y" * 198
    assert found.error == "a\ufffdb"


async def test_a_node_of_an_earlier_release_writes_rows_beside(database: Database, of: Of) -> None:
    """It names the columns that it knows, and leaves the others empty."""
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    row = change(one, 1)
    known = ("version", "from_state", "to_state", "reason", "actor", "correlation_id", "caused_by", "command_id", "at")
    values = {pair.owner: one.id, **{name: getattr(row, name) for name in known}}
    async with database.begin() as tx:
        await tx.execute(insert(pair.history).values(values))
        await history.insert(tx, pair, [(one.id, replace(change(one, 2), kind="immediate"))])
    async with database.read() as connection:
        found = await history.listing(connection, pair, one.id, 0, 10)
    assert found == [row, replace(change(one, 2), kind="immediate")]


async def test_a_run_begins_with_the_start_or_with_a_retry_of_what_had_failed(database: Database, of: Of) -> None:
    pair, saga = of
    one, other = await some(database, 2, pair, saga)
    path = [(None, "A"), ("A", "FAILED"), ("FAILED", "FAILED"), ("FAILED", "A"), ("A", "FAILED")]
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, moved(one, n, *step)) for n, step in enumerate(path, start=1)])
        await history.insert(tx, pair, [(other.id, moved(other, 1, *path[0]))])
    async with database.read() as connection:
        assert await history.run_began(connection, pair, one.id) == 4
        assert await history.run_began(connection, pair, other.id) == 1
        assert await history.run_began(connection, pair, other.id + 4711) == 0


async def test_a_failure_counts_until_its_step_is_done(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    failed: dict[str, Any] = {"kind": "attempt_failed", "error_type": "Busy"}
    done: dict[str, Any] = {"kind": "step_succeeded"}
    rows = [
        moved(one, 1, None, "A"),
        replace(moved(one, 2, "A", "A"), **failed),
        replace(moved(one, 3, "A", "A"), kind="pause"),
        replace(moved(one, 4, "A", "B"), **done),
        replace(moved(one, 5, "B", "COMPENSATING"), **failed),
        replace(moved(one, 6, "COMPENSATING", "COMPENSATING"), **done),
    ]
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, row) for row in rows])
    async with database.read() as connection:
        found = [await history.had_failed(connection, pair, one.id, 0, before) for before in range(2, 8)]
        assert found == [False, True, True, False, True, True]
        assert not await history.had_failed(connection, pair, one.id, 5, 7)


async def test_the_failure_of_a_run_is_its_step_s_with_the_attempts_that_led_to_it(database: Database, of: Of) -> None:
    pair, saga = of
    one, other = await some(database, 2, pair, saga)

    def of_step(version: int, kind: str, source: str = "B", step: str = "pay") -> StateChange:
        return replace(moved(one, version, source, source), kind=kind, step=step, error_type="Busy")

    rows = [
        replace(moved(one, 1, None, "A"), kind="created"),
        of_step(2, "attempt_failed", "A", "pack"),
        of_step(3, "step_failed", "A", "pack"),
        of_step(4, "step_failed", "COMPENSATING", "pack"),
        replace(moved(one, 5, "FAILED", "A"), kind="retry"),
        of_step(6, "attempt_failed", "A", "pack"),
        of_step(7, "step_succeeded", "A", "pack"),
        of_step(8, "attempt_failed"),
        of_step(9, "step_held"),
        of_step(10, "retry"),
        of_step(11, "attempt_failed"),
        of_step(12, "failure_deferred"),
        of_step(13, "attempt_failed"),
        of_step(14, "step_failed"),
        of_step(15, "attempt_failed", "COMPENSATING"),
        of_step(16, "step_failed", "COMPENSATING"),
    ]
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, row) for row in rows])
        await history.insert(tx, pair, [(other.id, replace(moved(other, 1, "A", "FAILED"), kind="terminate"))])
    async with database.read() as connection:
        last = await history.failure_of_run(connection, pair, one.id, 5)
        assert last == rows[13]
        assert await history.attempts_until(connection, pair, one.id, 5, last) == 3
        assert await history.failure_of_run(connection, pair, one.id, 14) is None
        assert await history.failure_of_run(connection, pair, other.id, 0) is None


@pytest.mark.parametrize("unknown", [{"kind": None}, {"step": None}], ids=["an attempt", "the step"])
async def test_attempts_are_unknown_where_an_earlier_release_has_written_the_rows(
    database: Database, of: Of, unknown: dict[str, Any]
) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    attempt = replace(moved(one, 2, "A", "A"), kind="attempt_failed", step="pay")
    failure = replace(moved(one, 3, "A", "FAILED"), kind="step_failed", step="pay")
    rows = [moved(one, 1, None, "A"), attempt if "step" in unknown else replace(attempt, **unknown), failure]
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, row) for row in rows])
    async with database.read() as connection:
        told = replace(failure, **unknown) if "step" in unknown else failure
        assert await history.attempts_until(connection, pair, one.id, 1, told) is None
        assert await history.attempts_until(connection, pair, one.id, 2, failure) == 1


@pytest.mark.parametrize(
    ("reason", "actor", "target", "failed"),
    [
        ("retry 2: evt.stepFailed: Busy: later", "orchestrator", "A", True),
        ("retry 2: deadline", "orchestrator", "A", True),
        ("held: evt.stepFailed: Busy: later", "orchestrator", "A", True),
        ("QueueTimeout: no worker started", "orchestrator", "COMPENSATING", True),
        ("evt.done", "orchestrator", "B", False),
        ("skip: deadline", "ada", "B", False),
        ("retry 2: deadline", "ada", "A", False),
    ],
)
async def test_a_failure_in_a_row_of_an_earlier_release_counts_too(
    database: Database, of: Of, reason: str, actor: str, target: str, failed: bool
) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    rows = [moved(one, 1, None, "A"), replace(moved(one, 2, "A", target), reason=reason, actor=actor)]
    before = replace(moved(one, 3, target, target), kind="pause")
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, row) for row in [*rows, before]])
    async with database.read() as connection:
        assert await history.had_failed(connection, pair, one.id, 1, 4) is failed


def moved(instance: Instance, version: int, source: str | None, target: str) -> StateChange:
    return replace(change(instance, version), from_state=source, to_state=target)


async def test_it_is_noted_when_a_command_was_sent_and_never_again(database: Database, of: Of) -> None:
    pair, saga = of
    one, other = await some(database, 2, pair, saga)
    rows = [(owner.id, named(owner, version, version)) for owner in (one, other) for version in (1, 2, 3)]
    at = one.created_at + timedelta(seconds=1)
    later = at + timedelta(seconds=1)
    two, three = f"{one.id}-2", f"{one.id}-3"
    async with database.begin() as tx:
        await history.insert(tx, pair, rows)
        await history.sent(tx, pair, [(other.id, f"{other.id}-3"), (one.id, two), (one.id, two), (one.id, "no")], at)
        await history.sent(tx, pair, [(one.id, two), (one.id, three), (other.id, three)], later)
        await history.sent(tx, pair, [], later)
    async with database.read() as connection:
        assert [row.sent_at for row in await history.listing(connection, pair, one.id, 0, 9)] == [None, at, later]
        assert [row.sent_at for row in await history.listing(connection, pair, other.id, 0, 9)] == [None, None, at]


async def test_a_later_row_that_names_a_command_is_not_the_one_that_gave_it_out(database: Database, of: Of) -> None:
    """Both where its first copy leaves after that row was written, and where a second one does."""
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    at = one.created_at + timedelta(seconds=1)
    rows = [(one.id, named(one, version, 1 if version < 4 else 4)) for version in (1, 2, 3, 4, 5)]
    async with database.begin() as tx:
        await history.insert(tx, pair, rows)
        await history.sent(tx, pair, [(one.id, f"{one.id}-1"), (one.id, f"{one.id}-4")], at)
        await history.sent(tx, pair, [(one.id, f"{one.id}-1")], at + timedelta(seconds=1))
    async with database.read() as connection:
        found = await history.listing(connection, pair, one.id, 0, 9)
    assert [row.sent_at for row in found] == [at, None, None, at, None]


def named(instance: Instance, version: int, number: int) -> StateChange:
    """A row that names this command of the instance."""
    return replace(change(instance, version), command_id=f"{instance.id}-{number}")


async def test_the_begin_of_the_work_that_a_change_ends_is_kept(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    row = replace(change(one, 1), begun_at=one.created_at + timedelta(microseconds=7))
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, row)])
    async with database.read() as connection:
        assert await history.listing(connection, pair, one.id, 0, 9) == [row]
