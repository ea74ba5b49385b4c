"""Does a saga's row say that its queue has no consumer, from when it loses them until it has some again?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrix.engine import consumer_presence, hindered_sagas
from orchestrix.engine.control import Action
from orchestrix.persistence.sagas import hindered_instances
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.state import Instance
from tests.integration.orchestration.rig import Rig
from tests.integration.orchestration.test_begins import say
from tests.support import eventually


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_presence, "CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(consumer_presence, "IDLE_CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(hindered_sagas, "LOSS_GRACE_S", 0.05)
    monkeypatch.setattr(hindered_sagas, "SEARCH_INTERVAL_S", 0.02)


async def hindered(rig: Rig, one: Instance, by: str | None) -> Instance:
    """Waits until its row says so."""
    return await rig.until(one, lambda now: now.hindered_by == by, message=f"hindered by {by}")


async def test_it_is_recorded_when_a_queue_loses_its_consumers_and_taken_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindered_sagas, "INSTANCES_PER_TRANSACTION", 2)
    rig.broker.hearers = 0
    apps = [await rig.begin(f"app-{n}") for n in range(5)]
    own = await rig.begin("own", saga="calm")
    await rig.outbox_empty()
    before = [await rig.now(one) for one in apps]
    await rig.wakeups.start()
    for one in (*apps, own):
        await hindered(rig, one, "no_consumer")
    assert [replace(await rig.now(one), hindered_by=None) for one in apps] == before, "nothing else changes"
    rig.broker.hearers = 1
    for one in (*apps, own):
        await hindered(rig, one, None)


async def test_it_is_looked_for_only_when_something_changes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await rig.begin("shop")
    reads: list[str] = []
    real = hindered_instances.lock_waiting

    async def lock_waiting(tx, pair, wanted, after, limit):  # type: ignore[no-untyped-def]
        reads.append(wanted.saga)
        return await real(tx, pair, wanted, after, limit)

    monkeypatch.setattr(hindered_instances, "lock_waiting", lock_waiting)
    rig.broker.hearers = 0
    await rig.wakeups.start()
    await hindered(rig, app, "no_consumer")
    await eventually(lambda: len(rig.wakeups._blockers._recorded) == len(rig.catalog.commands), deadline=5)
    before = len(reads)
    for _ in range(5):
        await rig.wakeups._consumers.checked.wait(None)
    assert len(reads) == before


async def test_a_worker_that_is_back_soon_is_not_noticed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hindered_sagas, "LOSS_GRACE_S", 60.0)
    app = await rig.begin("shop")
    rig.broker.hearers = 0
    await rig.wakeups.start()
    await eventually(lambda: rig.wakeups._consumers.is_silent("cmd.createGitRepo", 0.0) is True, deadline=5)
    for _ in range(3):
        await rig.wakeups._consumers.checked.wait(None)
    assert (await rig.now(app)).hindered_by is None


async def test_what_a_worker_has_in_hand_is_not_hindered(rig: Rig) -> None:
    await rig.begins.start()
    begun, other = await rig.begin("begun"), await rig.begin("other")
    await rig.outbox_empty()
    await say(rig, await rig.now(begun))
    rig.broker.hearers = 0
    await rig.wakeups.start()
    await hindered(rig, other, "no_consumer")
    assert (await rig.now(begun)).hindered_by is None


async def test_the_next_step_and_the_undo_wait_for_queues_of_their_own(rig: Rig) -> None:
    app, other = await rig.begin("shop"), await rig.begin("other")
    rig.report(app, "evt.gitRepoCreated")
    await rig.reached(app, "REGISTERING")
    await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.CANCEL, "ada", "no")))
    awaited = await rig.reached(app, "COMPENSATING")
    assert awaited.progress.awaited == "registerApp"
    rig.report(awaited, "evt.appRegistered")
    undone = await rig.until(app, lambda now: now.progress.todo == ("registerApp", "createGitRepo"))
    assert undone.progress.awaited is None
    rig.broker.silent = {"cmd.unregisterApp"}
    await rig.wakeups.start()
    await hindered(rig, app, "no_consumer")
    assert (await rig.now(other)).hindered_by is None
    rig.report(await rig.now(app), "evt.appUnregistered")
    await rig.until(app, lambda now: now.progress.todo == ("createGitRepo",))
    await hindered(rig, app, None)


async def test_a_node_that_starts_takes_back_what_an_earlier_one_has_recorded(rig: Rig) -> None:
    app = await rig.begin("shop")
    async with rig.database.begin() as tx:
        await hindered_instances.record(tx, APPS, [app], "no_consumer")
    assert (await rig.now(app)).hindered_by == "no_consumer"
    await rig.wakeups.start()
    await hindered(rig, app, None)


async def test_a_timer_records_it_of_those_that_began_to_wait_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hindered_sagas, "LOSS_GRACE_S", 60.0)
    rig.broker.hearers = 0
    await rig.wakeups.start()
    one = await rig.begin("late", saga="calm")
    found = await hindered(rig, one, "no_consumer")
    assert (found.wake_reason, found.version) == ("no_consumer", 1)
    rig.report(found, "evt.strolled")
    assert (await rig.reached(one, "COMPLETED")).hindered_by is None


async def test_those_that_begin_to_wait_later_are_found_by_the_messages_of_their_queue(rig: Rig) -> None:
    rig.broker.hearers, rig.broker.waiting = 0, 1
    first = await rig.begin("first")
    await rig.wakeups.start()
    await hindered(rig, first, "no_consumer")
    for number, key in enumerate(("second", "third"), start=2):
        later = await rig.begin(key)
        await rig.outbox_empty()
        rig.broker.waiting = number
        found = await hindered(rig, later, "no_consumer")
        assert found.wake_reason == "deadline", "long before its time is over"


async def test_a_wait_that_a_timer_has_put_off_is_taken_back_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hindered_sagas, "LOSS_GRACE_S", 60.0)
    rig.broker.hearers = 0
    await rig.wakeups.start()
    one = await rig.begin("late", saga="calm")
    before = await hindered(rig, one, "no_consumer")
    assert before.wake_reason == "no_consumer"
    rig.broker.hearers = 1
    found = await hindered(rig, one, None)
    if found.wake_at == before.wake_at:  # else its own timer was as quick
        assert found == replace(before, wake_reason="deadline", hindered_by=None)
    assert found.wake_reason == "deadline"
    assert found.sending is not None
