"""Does each event move its saga once, and does a bad one leave the others alone?"""

from __future__ import annotations

import json

import pytest

from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.engine import event_listener
from orchestrix.errors import ConflictError, SchemaMismatch, Unavailable
from orchestrix.persistence.sagas import instances, transitions
from orchestrix.saga.advance import advance
from tests.integration.orchestration.rig import Rig
from tests.support import eventually


@pytest.mark.req("S3-22", "S3-23", "S3-24", "S3-27", "S3-29", "S3-30", "S3-31")
async def test_a_good_run(rig: Rig) -> None:
    app = await rig.begin("good")
    rig.report(app, "evt.gitRepoCreated", data={"repoUrl": "file:///r"})
    second = await rig.reached(app, "REGISTERING")
    assert second.version == 3
    await eventually(lambda: rig.sent("cmd.registerApp") == [second.command_id], deadline=5)
    rig.report(second, "evt.appRegistered")
    done = await rig.reached(app, "COMPLETED")
    assert (done.version, done.wake_at, done.blocker, done.data) == (4, None, None, {"repoUrl": "file:///r"})
    assert [(row.from_state, row.to_state, row.reason) for row in await rig.history(app)] == [
        (None, "APP_INITIATED", "created"),
        ("APP_INITIATED", "GIT_REPO_CREATED", "evt.gitRepoCreated"),
        ("GIT_REPO_CREATED", "REGISTERING", "immediate"),
        ("REGISTERING", "COMPLETED", "evt.appRegistered"),
    ]


@pytest.mark.req("S3-43", "S3-52")
async def test_every_event_three_times_in_one_batch_moves_once(rig: Rig) -> None:
    apps = [await rig.begin(f"app-{n}") for n in range(20)]
    for _ in range(3):
        for app in apps:
            rig.report(app, "evt.gitRepoCreated")
    for app in apps:
        await rig.reached(app, "REGISTERING")
    await rig.broker.settled("evt.gitRepoCreated")
    for app in apps:
        assert (await rig.now(app)).version == 3
        assert await rig.ignored(app) == {"repeated": 2}
    assert len(set(rig.sent("cmd.registerApp"))) == 20


async def test_an_event_nobody_can_handle_is_buried_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    apps = [await rig.begin(f"app-{n}") for n in range(8)]

    def moody(saga, instance, event, tick):  # type: ignore[no-untyped-def]
        if instance.key == "app-3":
            raise ZeroDivisionError("a bug")
        return advance(saga, instance, event, tick)

    monkeypatch.setattr(event_listener, "advance", moody)
    for app in apps:
        rig.report(app, "evt.gitRepoCreated")
    for app in apps:
        if app.key != "app-3":
            await rig.reached(app, "REGISTERING")
    await rig.broker.settled("evt.gitRepoCreated")
    dead = [message for message in rig.broker.published if message.exchange == "orchestrator.dead"]
    assert [message.routing_key for message in dead] == ["evt.gitRepoCreated"]
    assert "ZeroDivisionError" in str(dead[0].headers["x-reason"])
    assert (await rig.now(apps[3])).state == "APP_INITIATED"


async def test_a_batch_of_which_one_row_has_changed_is_not_half_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its history and its outbox would say: what has not moved is tried again, and not acknowledged."""
    apps = [await rig.begin(f"app-{n}") for n in range(4)]
    real, late = transitions.write, True

    async def write(tx, pair, changed, *rest):  # type: ignore[no-untyped-def]
        nonlocal late
        if changed and late:
            late = False
            (version, instance), *others = changed
            return await real(tx, pair, [(version + 7, instance), *others], *rest)
        return await real(tx, pair, changed, *rest)

    monkeypatch.setattr(transitions, "write", write)
    for app in apps:
        rig.report(app, "evt.gitRepoCreated")
    for app in apps:
        assert [row.version for row in await rig.history(await rig.reached(app, "REGISTERING"))] == [1, 2, 3]
    assert not late


async def test_events_wait_for_the_database_and_are_not_acknowledged_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await rig.begin("patient")
    real, away, tries = transitions.write, True, 0

    async def write(*arguments):  # type: ignore[no-untyped-def]
        nonlocal tries
        tries += 1
        if away:
            raise Unavailable("the database is away")
        return await real(*arguments)

    monkeypatch.setattr(transitions, "write", write)
    rig.report(app, "evt.gitRepoCreated")
    await eventually(lambda: tries >= 2, deadline=10)  # by then an early acknowledgement would have arrived
    assert rig.broker.queue("evt.gitRepoCreated").unacked
    assert (await rig.now(app)).state == "APP_INITIATED"
    away = False
    await rig.reached(app, "REGISTERING")
    await rig.broker.settled("evt.gitRepoCreated")


async def test_strangers_are_counted_and_change_nothing(rig: Rig) -> None:
    app = await rig.begin("known")
    rig.broker.put("evt.gitRepoCreated", b'{"appId": 424242, "correlationId": "x"}')
    rig.report(app, "evt.appRegistered")
    rig.report(app, "evt.gitRepoCreated", correlationId="forged")
    rig.report(app, "evt.gitRepoCreated", causationId="forged")
    await rig.broker.settled("evt.gitRepoCreated", "evt.appRegistered")
    assert (await rig.now(app)).version == 1
    assert await rig.ignored(app) == {"future": 1, "wrong-correlation": 1, "unknown-causation": 1}
    assert rig.listener.counts["unknown-app"] == 1
    assert buried(rig) == ["unknown-app"], "there is no timeline that could show it"


async def test_bad_output_is_kept_for_a_person(rig: Rig) -> None:
    app = await rig.begin("typed")
    rig.report(app, "evt.gitRepoCreated", data={"repoUrl": 5})
    await rig.broker.settled("evt.gitRepoCreated")
    assert (await rig.now(app)).state == "APP_INITIATED"
    assert [m.exchange for m in rig.broker.published if m.exchange == "orchestrator.dead"] == ["orchestrator.dead"]
    assert [reason.split(":")[0] for reason in await rig.ignored(app)] == ["bad-output"]


@pytest.mark.req("S3-32", "S3-33")
async def test_a_failed_step_ends_the_saga_and_nothing_moves_it_again(rig: Rig) -> None:
    app = await rig.begin("unlucky")
    rig.report(app, "evt.stepFailed", saga="app", error={"type": "Full", "message": "disk", "retryable": False})
    failed = await rig.reached(app, "FAILED")
    assert (failed.wake_at, failed.blocker) == (None, None)
    assert (await rig.history(app))[-1].reason == "evt.stepFailed: Full: disk"
    rig.report(app, "evt.appRegistered")
    await rig.broker.settled("evt.appRegistered")
    assert (await rig.now(app)).state == "FAILED"
    assert await rig.ignored(app) == {"ended": 1}


async def test_a_step_that_was_refused_and_yet_done_is_undone_after_the_end(rig: Rig) -> None:
    app = await rig.begin("contradicted")
    rig.report(app, "evt.stepFailed", saga="app", error={"type": "Full", "message": "disk", "retryable": False})
    await rig.reached(app, "FAILED")
    rig.report(app, "evt.gitRepoCreated")
    await eventually(lambda: rig.sent("cmd.deleteGitRepo"), deadline=5)
    assert (await rig.now(app)).state == "FAILED"


async def test_a_row_that_somebody_holds_stops_nobody_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    held, *others = [await rig.begin(f"app-{n}") for n in range(5)]
    real, busy = instances.lock_with_held, True

    async def lock(tx, pair, ids):  # type: ignore[no-untyped-def]
        """What SKIP LOCKED answers while another transaction holds the first app's row."""
        rows, held_ids = await real(tx, pair, ids)
        return [row for row in rows if not (busy and row.id == held.id)], held_ids

    monkeypatch.setattr(instances, "lock_with_held", lock)
    for app in (held, *others):
        rig.report(app, "evt.gitRepoCreated")
    for app in others:
        await rig.reached(app, "REGISTERING")
    await eventually(lambda: len(rig.broker.queue("evt.gitRepoCreated").unacked) == 1, deadline=5)
    later = await rig.begin("later")
    rig.report(later, "evt.gitRepoCreated")
    await rig.reached(later, "REGISTERING")
    assert not any([await rig.ignored(app) for app in others]), "nobody is handled twice"
    busy = False
    await rig.reached(held, "REGISTERING")
    await rig.broker.settled("evt.gitRepoCreated")


async def test_a_conflict_that_never_ends_is_buried_with_its_reason(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await rig.begin("contested")
    tries = 0

    async def write(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise ConflictError("taken")

    monkeypatch.setattr(transitions, "write", write)
    rig.report(app, "evt.gitRepoCreated")
    await rig.broker.settled("evt.gitRepoCreated")
    assert tries == event_listener.CONFLICT_RETRIES
    dead = [message for message in rig.broker.published if message.exchange == "orchestrator.dead"]
    assert [message.headers["x-reason"] for message in dead] == ["cannot-be-handled: ConflictError"]


async def test_events_wait_for_the_end_of_an_upgrade(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await rig.begin("upgraded")
    real, upgrading = transitions.write, True

    async def write(*arguments):  # type: ignore[no-untyped-def]
        if upgrading:
            raise SchemaMismatch("a column is missing")
        return await real(*arguments)

    monkeypatch.setattr(transitions, "write", write)
    rig.report(app, "evt.gitRepoCreated")
    await eventually(lambda: bool(rig.broker.queue("evt.gitRepoCreated").unacked), deadline=5)
    upgrading = False
    await rig.reached(app, "REGISTERING")
    assert not [message for message in rig.broker.published if message.exchange == "orchestrator.dead"]


async def test_a_letter_that_the_broker_refuses_goes_without_its_foreign_properties(rig: Rig) -> None:
    def judge(message: Outgoing) -> Published:
        foreign = message.exchange == "orchestrator.dead" and message.correlation_id is not None
        return Published(Outcome.REFUSED, "too long") if foreign else Published(Outcome.CONFIRMED)

    rig.broker.judge = judge
    app = await rig.begin("neighbour")
    rig.broker.put("evt.gitRepoCreated", b"not json", correlation_id="\ufffd" * 200)
    rig.report(app, "evt.gitRepoCreated")
    await rig.reached(app, "REGISTERING")
    await rig.broker.settled("evt.gitRepoCreated")
    dead = [message for message in rig.broker.published if message.exchange == "orchestrator.dead"]
    assert [(message.body, message.correlation_id) for message in dead] == [(b"not json", None)]


async def test_a_saga_that_moves_on_leaves_its_parked_command_behind(rig: Rig) -> None:
    def judge(message: Outgoing) -> Published:
        first = message.routing_key == "cmd.createGitRepo"
        return Published(Outcome.REFUSED, "too large") if first else Published(Outcome.CONFIRMED)

    rig.broker.judge = judge
    app = await rig.begin("parked")

    async def blocked() -> bool:
        return (await rig.now(app)).blocker == "unsendable"

    await eventually(blocked, deadline=5)
    rig.report(app, "evt.gitRepoCreated", proven=False)
    moved = await rig.reached(app, "REGISTERING")
    assert moved.blocker is None
    await rig.outbox_empty()
    assert rig.sent("cmd.registerApp") == [moved.command_id]


async def test_a_failure_that_names_no_saga_is_told_by_its_command(rig: Rig) -> None:
    """An app and a saga of a user's own have the same id."""
    app, saga = await rig.begin("app"), await rig.begin("own", saga="hasty")
    assert app.id == saga.id
    rig.report(saga, "evt.stepFailed", error={"type": "Full", "message": "disk", "retryable": False})
    await rig.reached(saga, "FAILED")
    assert (await rig.now(app)).state == "APP_INITIATED"
    rig.report(app, "evt.stepFailed", error={"type": "Full", "message": "disk", "retryable": False})
    await rig.reached(app, "FAILED")


async def test_a_failure_of_nobody_is_kept_for_a_person(rig: Rig) -> None:
    rig.broker.put("evt.stepFailed", b'{"appId": 77, "correlationId": "x", "causationId": "y", "error": {}}')
    await rig.broker.settled("evt.stepFailed")
    assert rig.listener.counts["unknown-app"] == 1
    assert buried(rig) == ["unknown-app"]


async def test_a_failure_of_nobody_that_names_its_saga_is_kept_too(rig: Rig) -> None:
    body = b'{"appId": 9999, "saga": "app", "correlationId": "x", "causationId": "y", "error": {}}'
    rig.broker.put("evt.stepFailed", body)
    await rig.broker.settled("evt.stepFailed")
    assert buried(rig) == ["unknown-app"]


async def test_a_success_that_names_another_saga_moves_none(rig: Rig) -> None:
    """Neither that which it names nor that which owns its type, though both have an instance of that id."""
    app, other = await rig.begin("mislabelled"), await rig.begin("named", saga="hasty")
    assert app.id == other.id
    rig.report(app, "evt.gitRepoCreated", saga="hasty")
    await rig.broker.settled("evt.gitRepoCreated")
    told = "wrong-saga: it names saga 'hasty', but evt.gitRepoCreated belongs to saga 'app'"
    assert buried(rig) == [told]
    assert rig.listener.counts["wrong-saga"] == 1
    assert ((await rig.now(app)).version, (await rig.now(other)).version) == (1, 1)
    rig.report(app, "evt.gitRepoCreated", saga="app")
    await rig.reached(app, "REGISTERING")


def buried(rig: Rig) -> list[object]:
    """The reasons of what has gone to the dead letters."""
    return [one.headers["x-reason"] for one in rig.broker.published if one.exchange == "orchestrator.dead"]


async def test_history_names_the_message_and_its_trace(rig: Rig) -> None:
    app = await rig.begin("traced")
    body = {"appId": app.id, "correlationId": app.correlation_id, "causationId": app.command_id, "id": "event-1"}
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    rig.broker.put("evt.gitRepoCreated", json.dumps(body).encode(), headers=headers)
    second = await rig.reached(app, "REGISTERING")
    rig.report(second, "evt.appRegistered")
    done = await rig.reached(app, "COMPLETED")
    rows = await rig.history(done)
    assert [(row.kind, row.step, row.message_type, row.message_id, row.trace_id) for row in rows] == [
        ("created", None, None, None, None),
        ("step_succeeded", "createGitRepo", "evt.gitRepoCreated", "event-1", trace),
        ("immediate", None, None, None, trace),
        ("step_succeeded", "registerApp", "evt.appRegistered", None, None),
    ]
