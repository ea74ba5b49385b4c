"""Are the rows of earlier releases filled once, with what the code writes into new ones?"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update

from orchestrix import Saga
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import history
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.persistence.schema import migrator
from orchestrix.persistence.tables import saga_definitions
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import NO_PROGRESS, Instance, StateChange
from orchestrix.saga.versions.serialization import body_of
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import NOW
from tests.unit.sagas.runs import AGAIN, TRIP, Run

BEFORE = "0009"
TRACE = "0af7651916cd43dd8448eb211c80319c"
NEW = ("kind", "step", "message_type", "message_id", "error_type", "error", "trace_id", "sent_at", "begun_at")
HOLD = StepError("Hold", "look at it", retryable=False, hold=True)


@pytest.fixture
async def database(empty_url: str) -> AsyncIterator[Database]:
    database = Database(empty_url, make=True)
    await migrator.upgrade(empty_url)
    await migrator.downgrade(empty_url, BEFORE)
    yield database
    await database.close()


def good(saga: Saga) -> Run:
    """A run that comes to its end."""
    return Run(saga, *(step.name for step in saga.steps))


def undone() -> Run:
    """A trip that fails, whose undo fails, is tried again, and is skipped at last."""
    run = Run(TRIP, "flight", "notice", "hotel")
    run.fails(AGAIN)
    run.expires()
    run.fails()
    run.fails(AGAIN)
    run.expires()
    run.fails()
    run.asks(SagaAction.RETRY)
    run.undone("hotel")
    run.fails()
    run.fails()
    run.asks(SagaAction.SKIP)
    return run


def held() -> Run:
    """A trip that is paused and resumed, held and retried, late, refused by the broker and cancelled."""
    run = Run(TRIP)
    run.asks(SagaAction.PAUSE)
    run.fails(AGAIN)
    run.asks(SagaAction.RESUME)
    run.expires()
    run.fails(HOLD)
    run.asks(SagaAction.RETRY)
    run.expires()
    run.expires()
    run.cannot_be_sent()
    run.history[-1] = replace(run.history[-1], reason="unsendable: cmd.flight: too large")  # as the relay says it
    run.asks(SagaAction.RETRY)
    run.done("flight")
    run.asks(SagaAction.CANCEL)
    run.done("notice")
    run.undone("flight")
    return run


STORIES = (good, undone, held)


async def fill(tx: Transaction, id: int, run: Run) -> None:
    """The instance and its history as the release before wrote them."""
    pair, one = saga_tables_of(run.saga.name), run.instance
    await tx.execute(insert(pair.instances).values(instance_values(pair, id, one)))
    known = [name for name in StateChange.__slots__ if name not in NEW]
    for row in run.history:
        values = {pair.owner: id, **{name: getattr(row, name) for name in known}}
        await tx.execute(insert(pair.history).values(values))


def instance_values(pair: SagaTables, id: int, one: Instance) -> dict[str, Any]:
    """The columns of an instance that the release before knew."""
    names = {"key": f"{one.key}-{id}", "saga": one.saga} if pair.saga is None else {"app_name": f"{one.key}-{id}"}
    skipped = {"id", "key", "saga", "progress", "data", "installation", "hindered_by", "begun_at", "trace_head"}
    fields = {name: getattr(one, name) for name in Instance.__slots__ if name not in skipped}
    progress = None if one.progress is NO_PROGRESS else one.progress.to_json()
    return {"id": id, **names, **fields, "data": dict(one.data), "progress": progress}


async def define(tx: Transaction, *sagas: Saga) -> None:
    """Stores the definitions, as nodes do before they take messages."""
    for saga in sagas:
        times = {"created_at": NOW, "updated_at": NOW}
        key = {"saga": saga.name, "version": saga.version, "form": 1, "digest": "0" * 64}
        await tx.execute(insert(saga_definitions).values(**key, body=body_of(saga), data_schema=None, **times))


async def rows(database: Database, saga: str, id: int) -> list[StateChange]:
    """The history as it is now."""
    async with database.read() as connection:
        return await history.listing(connection, saga_tables_of(saga), id, 0, 1000)


def facts(changes: Sequence[StateChange], *names: str) -> list[tuple[Any, ...]]:
    """These fields of each row."""
    return [tuple(getattr(change, name) for name in names) for change in changes]


async def test_old_rows_are_filled_with_what_new_ones_have(database: Database, empty_url: str) -> None:
    runs = {1: good(TRIP), 2: undone(), 3: held()}
    app = good(APP_PROVISIONING)
    async with database.begin() as tx:
        await define(tx, TRIP, APP_PROVISIONING)
        await fill(tx, 1, app)
        for id, run in runs.items():
            await fill(tx, id, run)
    await migrator.upgrade(empty_url)
    assert await migrator.check(empty_url) == []
    for id, run in [(1, app), *runs.items()]:
        found = await rows(database, run.saga.name, id)
        names = ("version", "kind", "message_type", "message_id", "error_type", "error", "trace_id")
        assert facts(found, *names) == facts(run.history, *names)
        steps = [(now.step, then.step) for now, then in zip(found, run.history, strict=True)]
        assert all(now in (then, None) for now, then in steps), "no step is named that it is not about"
        on_path = [pair for pair, row in zip(steps, run.history, strict=True) if row.from_state in run.saga.path]
        assert all(now == then for now, then in on_path), on_path
    assert ("step_undone", "hotel") in facts(await rows(database, "trip", 2), "kind", "step")


@pytest.mark.parametrize("length", [470, 480, 489, 500, 600])
async def test_a_long_failure_during_a_pause_is_one_message(database: Database, empty_url: str, length: int) -> None:
    """Each row has cut its text elsewhere, but they name one event."""
    run = Run(TRIP)
    run.asks(SagaAction.PAUSE)
    run.fails(StepError("Busy", "x" * length, retryable=True))
    run.asks(SagaAction.RESUME)
    run.expires()
    run.fails(StepError("Busy", "x" * length, retryable=True), id="another")
    async with database.begin() as tx:
        await fill(tx, 1, run)
    await migrator.upgrade(empty_url)
    found = facts(await rows(database, "trip", 1), "message_type", "message_id")
    assert found == facts(run.history, "message_type", "message_id")
    assert len([type for type, _ in found if type is not None]) == 2


async def test_a_start_has_the_trace_of_its_instance(database: Database, empty_url: str) -> None:
    async with database.begin() as tx:
        await fill(tx, 7, good(APP_PROVISIONING))
        await tx.execute(text(f"UPDATE apps SET traceparent = '00-{TRACE}-b7ad6b7169203331-01'"))
    await migrator.upgrade(empty_url)
    traces = [row.trace_id for row in await rows(database, "app", 7)]
    assert traces == [TRACE, None, None, None]


async def test_without_a_stored_definition_the_steps_are_unknown(database: Database, empty_url: str) -> None:
    async with database.begin() as tx:
        await fill(tx, 1, undone())
    await migrator.upgrade(empty_url)
    found = await rows(database, "trip", 1)
    assert facts(found, "kind", "error") == facts(undone().history, "kind", "error")
    assert {row.step for row in found} == {None, "hotel"}, "an undone step is named by its row"


async def test_many_instances_are_filled_batch_by_batch(
    database: Database, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: what an upgrade that was cut off has filled stays, and so does what nodes have written meanwhile."""
    script = load()
    monkeypatch.setattr(script, "INSTANCES_PER_BATCH", 3)
    monkeypatch.setattr(script, "ROWS_PER_STATEMENT", 2)
    run = good(APP_PROVISIONING)
    async with database.begin() as tx:
        await define(tx, APP_PROVISIONING)
        for id in range(1, 12):
            await fill(tx, id, run)
    await migrator.upgrade(empty_url)
    table = saga_tables_of("app").history
    async with database.begin() as tx:
        await tx.execute(update(table).where(table.c.app_id != 6).values(kind=None))
        await tx.execute(update(table).where(table.c.app_id == 6).values(kind="seen"))
    await database.migrate(lambda connection: run_fill(script, connection))
    async with database.read() as connection:
        found = list(await connection.execute(select(table.c.app_id, table.c.kind).order_by(table.c.id)))
    kinds = [row.kind for row in run.history]
    assert [kind for id, kind in found if id != 6] == kinds * 10
    assert {kind for id, kind in found if id == 6} == {"seen"}


async def test_upgrades_at_once_fill_in_turn(database: Database, empty_url: str) -> None:
    """Between two batches, too, no other upgrade may begin."""
    async with database.begin() as tx:
        await fill(tx, 1, good(APP_PROVISIONING))
    await asyncio.gather(*(migrator.upgrade(empty_url) for _ in range(3)))
    assert await migrator.current(database) == migrator.HEAD
    assert await migrator.check(empty_url) == []
    assert None not in [row.kind for row in await rows(database, "app", 1)]


def load() -> ModuleType:
    """The script, as a module of its own."""
    place = migrator.SCRIPTS / "versions" / "0010_columns.py"
    spec = importlib.util.spec_from_file_location("columns_script", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_fill(script: ModuleType, connection: Any) -> None:
    """Runs the filling alone, as Alembic would run all of it."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    with Operations.context(MigrationContext.configure(connection)):
        script._fill()
