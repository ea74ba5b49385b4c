"""Versions: does every instance run by its own, whoever reads its events, and is nothing lost that nobody can judge?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from orchestrix import COMPLETED, Compensation, NothingToUndo, Saga, Step
from orchestrix.engine import held_events
from orchestrix.engine.control import Action
from orchestrix.errors import NotFound, Unavailable
from orchestrix.persistence import tables
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import definitions
from orchestrix.persistence.sagas.definition_store import VersionInUse, stored
from orchestrix.persistence.sagas.definitions import StoredDefinition
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.advance import advance
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import Instance
from orchestrix.telemetry.trace_context import context_in
from tests.integration.orchestration.rig import CALM, Rig
from tests.servers import templates
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id, recorded_spans

PACK = Step("pack", "PACKING", "cmd.pack", "evt.packed", "SENDING", Compensation("cmd.unpack", "evt.unpacked"))
SEND = Step("send", "SENDING", "cmd.send", "evt.sent", COMPLETED, NothingToUndo("it is gone"))
FIRST = Saga("parcel", (PACK, SEND))
WRAP = Step("wrap", "WRAPPING", "cmd.wrap", "evt.wrapped", "LABELLING", NothingToUndo("paper"))
LABEL = Step("label", "LABELLING", "cmd.label", "evt.labelled", "SENDING", NothingToUndo("ink"))
SECOND = Saga("parcel", (WRAP, LABEL, SEND), version=2)
"""Another first state, another event, and one more step."""
CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=opaque"}

Nodes = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def nodes(sqlite_url: str) -> AsyncIterator[Nodes]:
    """Makes nodes over one database, each with the code that is given, and a broker of its own."""
    templates.upgraded(sqlite_url)
    made: list[Rig] = []

    async def node(*sagas: Saga, record: bool = True, batch: int = 100) -> Rig:
        rig = Rig(Database(sqlite_url), catalog=Catalog(sagas), batch=batch)
        made.append(rig)
        if record:
            await rig.definitions.record()
        await rig.start()
        await rig.held.start()
        return rig

    yield node
    for rig in made:
        await rig.stop()
        await rig.database.close()


async def held_in(rig: Rig) -> list[str]:
    """The reasons of all held events, in their order."""
    async with rig.database.read() as connection:
        return list((await connection.execute(text("SELECT reason FROM held_events ORDER BY id"))).scalars())


async def path(rig: Rig, instance: Instance) -> list[str]:
    """The states that it went through."""
    return [row.to_state for row in await rig.history(instance)]


async def test_a_node_with_the_next_version_moves_the_instances_of_the_last(nodes: Nodes) -> None:
    old = await nodes(FIRST)
    one = await old.begin("x", saga="parcel")
    new = await nodes(SECOND)
    other = await new.begin("y", saga="parcel")
    new.report(one, "evt.packed")
    new.report(other, "evt.wrapped")
    assert (await new.reached(one, "SENDING")).definition_version == 1
    assert (await new.reached(other, "LABELLING")).definition_version == 2
    await eventually(lambda: len(new.sent("cmd.send")) == 1 and len(new.sent("cmd.label")) == 1, deadline=5)
    new.report(await new.now(one), "evt.sent")
    await new.reached(one, COMPLETED)
    assert await path(new, one) == ["PACKING", "SENDING", COMPLETED]
    assert await new.ignored(one) == {}


async def test_the_node_with_the_last_version_moves_the_instances_of_the_next(nodes: Nodes) -> None:
    """As when a deployment is rolled back."""
    old = await nodes(FIRST)
    new = await nodes(SECOND)
    one = await new.begin("x", saga="parcel")
    await old.definitions.read_all()
    old.report(one, "evt.wrapped")
    old.report(await old.reached(one, "LABELLING"), "evt.labelled")
    old.report(await old.reached(one, "SENDING"), "evt.sent")
    await old.reached(one, COMPLETED)
    assert await path(old, one) == ["WRAPPING", "LABELLING", "SENDING", COMPLETED]


async def test_a_version_is_read_in_the_transaction_that_meets_it(nodes: Nodes) -> None:
    """A node that reads all rows every ten seconds only meets an event of a version that is a moment old."""
    old = await nodes(FIRST)
    new = await nodes(replace(FIRST, version=2, steps=(PACK, replace(SEND, timeout=timedelta(seconds=7)))))
    one = await new.begin("x", saga="parcel")
    old.report(one, "evt.packed")
    sending = await old.reached(one, "SENDING")
    assert sending.wait_ms == 7000
    assert await held_in(old) == []


async def test_a_node_without_any_code_drives_a_saga_to_its_end(nodes: Nodes) -> None:
    one = await (await nodes(FIRST, CALM)).begin("x", saga="parcel")
    bare = await nodes(CALM)
    assert "evt.packed" in bare.catalog.events
    with pytest.raises(NotFound, match="unknown saga 'parcel': it is not in the code of this node"):
        await bare.begin("y", saga="parcel")
    bare.report(one, "evt.packed")
    bare.report(await bare.reached(one, "SENDING"), "evt.sent")
    await bare.reached(one, COMPLETED)


async def test_its_timers_and_undo_go_by_the_version_of_the_row(nodes: Nodes) -> None:
    quick = replace(FIRST, steps=(PACK, replace(SEND, timeout=timedelta(milliseconds=50))), timeout=None)
    one = await (await nodes(quick)).begin("x", saga="parcel")
    bare = await nodes(SECOND)
    await bare.wakeups.start()
    bare.report(one, "evt.packed")
    sending = await bare.reached(one, "SENDING")
    bare.report(sending, "evt.stepFailed", error={"type": "Lost", "message": "no road", "retryable": False})
    undoing = await bare.reached(one, "COMPENSATING")
    await eventually(lambda: bare.sent("cmd.unpack") == [undoing.command_id], deadline=5)
    bare.report(undoing, "evt.unpacked")
    await bare.reached(one, "FAILED")


async def test_an_event_of_a_version_that_is_stored_nowhere_is_held_and_applied_later(nodes: Nodes) -> None:
    old = await nodes(FIRST, record=False)  # a node of a release that stored no definitions
    await old.held.stop()  # nor held events: it would apply those that are held here
    one, two = await old.begin("x", saga="parcel"), await old.begin("y", saga="parcel")
    new = await nodes(
        SECOND, replace(FIRST, name="other", version=9, steps=(replace(SEND, command="cmd.o", event="evt.o"),))
    )
    await new.wakeups.start()
    for _ in range(3):
        new.report(one, "evt.stepFailed", id="f-1", error={"type": "X", "message": "x", "retryable": True})
    new.report(two, "evt.stepFailed", id="f-2", error={"type": "X", "message": "x", "retryable": True})
    await new.broker.settled("evt.stepFailed")
    assert await held_in(new) == ["unknown-version"] * 2
    assert [(await new.now(app)).version for app in (one, two)] == [1, 1]
    assert await new.ignored(one) == {}
    explained = await new.explainer.why("parcel", one.id)
    assert explained.blocker == "unknown_version"
    assert "does not know version 1 of saga 'parcel'" in explained.sentence
    with pytest.raises(Unavailable, match="does not know version 1 of saga 'parcel'"):
        await new.control.act(Action("parcel", one.id, ActionRequest(SagaAction.RETRY, "ada", "now")))
    await old.definitions.record()
    await new.definitions.read_all()
    retried = await new.until(one, lambda app: app.attempt == 2, message="tried again by its own version")
    assert retried.state == "PACKING"
    await eventually(lambda: held_is_empty(new), deadline=5)
    assert (await new.until(two, lambda app: app.attempt == 2)).definition_version == 1


async def held_is_empty(rig: Rig) -> bool:
    """Whether nothing is held."""
    return await held_in(rig) == []


async def test_events_that_stay_held_do_not_stand_before_those_that_can_be_applied(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_events, "INSTANCES_PER_LOOK", 2)
    monkeypatch.setattr(held_events, "LOOK_INTERVAL_S", 0.05)
    newest, old = await nodes(replace(FIRST, version=7), record=False), await nodes(FIRST, record=False)
    stuck = [await newest.begin(f"x-{n}", saga="parcel") for n in range(3)]
    one = await old.begin("y", saga="parcel")
    for rig in (newest, old):
        await rig.held.stop()
    new = await nodes(SECOND)
    for app in (*stuck, one):
        new.report(app, "evt.stepFailed", error={"type": "X", "message": "x", "retryable": True})
        await new.broker.settled("evt.stepFailed")
    assert await held_in(new) == ["unknown-version"] * 4
    await old.definitions.record()
    await new.until(one, lambda app: app.attempt == 2, message="it is applied behind them")
    assert await held_in(new) == ["unknown-version"] * 3


async def test_no_event_overtakes_a_held_one(nodes: Nodes) -> None:
    old = await nodes(FIRST, record=False)
    one = await old.begin("x", saga="parcel")
    new = await nodes(replace(FIRST, version=2))
    await old.held.stop()
    new.report(one, "evt.packed", id="first")
    await new.broker.settled("evt.packed")
    assert await held_in(new) == ["unknown-version"]
    old.report(one, "evt.packed", id="second")
    await old.broker.settled("evt.packed")
    assert await held_in(old) == ["unknown-version", "behind-held-events"]
    assert (await old.now(one)).state == "PACKING"
    await old.held.start()
    await old.reached(one, "SENDING")
    assert [row.caused_by for row in await old.history(one)] == [None, "first"]
    await eventually(lambda: held_is_empty(old), deadline=5)
    assert await old.ignored(one) == {"repeated": 1}


async def held(nodes: Nodes, event: str, **more: Any) -> tuple[Instance, Rig]:
    """A parcel whose event is held, and the node that alone can apply it and send what follows."""
    old = await nodes(FIRST, record=False)
    await old.held.stop()
    one = await old.begin("x", saga="parcel")
    new = await nodes(replace(FIRST, version=2))
    await old.relay.stop()
    body = {"appId": one.id, "correlationId": one.correlation_id, "causationId": one.command_id, **more}
    new.broker.put(event, json.dumps(body).encode(), headers=CONTEXT)
    await eventually(lambda: _holds(new, ["unknown-version"]), deadline=5)
    await old.definitions.record()
    return one, new


@pytest.mark.parametrize("split_after_s", [300.0, 0.0], ids=["in-time", "late"])
async def test_what_is_held_goes_on_in_its_trace(nodes: Nodes, split_after_s: float) -> None:
    """The next command follows from the span that applies the event; a late one is a root that links back."""
    one, new = await held(nodes, "evt.packed")
    with recorded_spans(split_after_s) as spans:
        await new.definitions.read_all()
        await new.reached(one, "SENDING")
        await eventually(lambda: len(new.broker.events("cmd.send")) == 1, deadline=5)
    applied = spans.one("apply held event")
    context = context_of(applied)
    theirs = CONTEXT["traceparent"]
    late = split_after_s == 0
    assert parent_id(applied) == (None if late else theirs[36:52])
    assert (context.trace_id == theirs[3:35]) != late
    assert links_of(applied) == ([("continued", theirs[3:35], theirs[36:52])] if late else [])
    assert (attribute(applied, "saga.id"), attribute(applied, "saga.state.to")) == (one.id, "SENDING")
    sent = context_in(new.broker.events("cmd.send")[0].headers)
    assert sent is not None
    assert sent.trace_id == context.trace_id
    moved = await new.now(one)
    assert moved.trace_head == context.traceparent
    assert (await new.history(one))[-1].trace_id == context.trace_id


async def test_a_dead_letter_of_what_was_held_has_its_trace(nodes: Nodes, spans: RecordedSpans) -> None:
    _one, new = await held(nodes, "evt.packed", data={"x": "y" * 70_000})
    await new.definitions.read_all()
    await eventually(lambda: held_is_empty(new), deadline=5)
    async with new.database.read() as connection:
        (headers,) = (await connection.execute(select(tables.dead_letters.c.headers))).scalars()
    assert headers | CONTEXT == headers
    assert attribute(spans.one("apply held event"), "orchestrix.ignored") == "bad-output"


async def test_timers_leave_alone_what_this_node_cannot_run_and_wake_the_rest(nodes: Nodes) -> None:
    hurried = replace(FIRST, steps=(replace(PACK, timeout=timedelta(milliseconds=30)), SEND))
    old = await nodes(hurried, record=False)
    stuck = [await old.begin(f"x-{n}", saga="parcel") for n in range(3)]
    new = await nodes(replace(SECOND, steps=(replace(WRAP, timeout=timedelta(milliseconds=300)), LABEL, SEND)), batch=2)
    mine = await new.begin("mine", saga="parcel")
    await new.wakeups.start()
    await new.until(mine, lambda app: app.attempt == 2, message="tried again")
    for one in stuck:
        assert await new.now(one) == one


async def test_a_held_event_that_the_saga_refuses_becomes_a_dead_letter(nodes: Nodes) -> None:
    old = await nodes(FIRST, record=False)
    one = await old.begin("x", saga="parcel")
    new = await nodes(replace(FIRST, version=2))
    new.report(one, "evt.packed", data={"x": "y" * 70_000})
    await new.broker.settled("evt.packed")
    await old.definitions.record()
    await new.definitions.read_all()
    await eventually(lambda: held_is_empty(new), deadline=5)
    async with new.database.read() as connection:
        letters = (await connection.execute(text("SELECT queue, reason, saga, instance_id FROM dead_letters"))).all()
    ((queue, reason, saga, instance_id),) = letters
    assert (queue, saga, instance_id) == ("evt.packed", "parcel", one.id)
    assert reason.startswith("bad-output")


async def test_a_definition_under_live_instances_is_refused_with_its_differences(nodes: Nodes) -> None:
    old = await nodes(FIRST)
    await old.begin("x", saga="parcel")
    with pytest.raises(VersionInUse) as refused:
        await nodes(replace(SECOND, version=1))
    assert "'parcel' version 1 has 1 live instance and differs in this code" in str(refused.value)
    assert "steps.pack was removed" in str(refused.value)
    assert "version=2" in str(refused.value)


async def test_who_starts_waits_until_the_database_lets_it_agree(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    new, lock, failures = await nodes(FIRST, record=False), definitions.lock, [Unavailable("away"), Unavailable("away")]

    async def late(tx: Transaction, saga: str, version: int) -> StoredDefinition | None:
        if failures:
            raise failures.pop()
        return await lock(tx, saga, version)

    monkeypatch.setattr(definitions, "lock", late)
    await new.definitions.agree()
    async with new.database.read() as connection:
        assert [one.key for one in await definitions.all_of(connection)] == [("parcel", 1)]
    assert [line.getMessage() for line in caplog.records if "paused" in line.getMessage()] == [
        "reading saga definitions paused: away"
    ]


async def test_a_row_of_a_newer_release_holds_its_events(nodes: Nodes) -> None:
    old = await nodes(FIRST)
    one = await old.begin("x", saga="parcel")
    async with old.database.begin() as tx:
        await definitions.replace(tx, replace(stored(FIRST), form=99))
    bare = await nodes(SECOND)
    bare.report(one, "evt.stepFailed", error={"type": "X", "message": "x", "retryable": True})
    await bare.broker.settled("evt.stepFailed")
    await eventually(lambda: _holds(bare, ["unknown-version"]), deadline=5)
    assert await held_in(bare) == ["unknown-version"]


async def _holds(rig: Rig, reasons: list[str]) -> bool:
    return await held_in(rig) == reasons


async def test_an_answer_counts_for_the_queue_of_its_own_version(nodes: Nodes) -> None:
    old = await nodes(FIRST)
    one = await old.begin("x", saga="parcel")
    new = await nodes(replace(FIRST, version=2, steps=(replace(PACK, command="cmd.packNew"), SEND)))
    new.report(one, "evt.stepFailed", error={"type": "X", "message": "x", "retryable": True})
    await new.until(one, lambda app: app.attempt == 2)
    assert set(new.progress._known) <= {"cmd.pack"}


async def test_nobody_overtakes_held_events_and_a_bad_one_stops_no_other(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await nodes(FIRST, record=False)
    bad, good = await old.begin("bad", saga="parcel"), await old.begin("good", saga="parcel")
    await old.held.stop()
    new = await nodes(replace(FIRST, version=2))
    for one in (bad, good):
        new.report(one, "evt.packed")
    await new.broker.settled("evt.packed")
    await new.held.stop()
    await old.definitions.record()
    await new.definitions.read_all()
    with pytest.raises(Unavailable, match="held events of this saga are applied first"):
        await new.control.act(Action("parcel", good.id, ActionRequest(SagaAction.TERMINATE, "ada", "now")))

    def moody(saga, instance, event, tick):  # type: ignore[no-untyped-def]
        if instance.id == bad.id:
            raise ZeroDivisionError("a bug")
        return advance(saga, instance, event, tick)

    monkeypatch.setattr(held_events, "advance", moody)
    await new.held.start()
    await new.reached(good, "SENDING")
    await eventually(lambda: held_is_empty(new), deadline=15)
    async with new.database.read() as connection:
        reasons = (await connection.execute(text("SELECT reason, instance_id FROM dead_letters"))).all()
    assert [tuple(one) for one in reasons] == [("cannot-be-handled: ZeroDivisionError", bad.id)]
