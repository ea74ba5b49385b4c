"""Does every live saga say in one sentence why it waits, and what helps?  Each situation is made, then asked about."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import text

from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.broker.topology import DEAD, UNROUTED
from orchestrix.dead_letters.collector import DeadLetterCollector
from orchestrix.dead_letters.service import DeadLetterRequester, DeadLetterService
from orchestrix.engine import hindered_sagas
from orchestrix.engine.control import Action
from orchestrix.engine.explain import pause, why, worker_crash, workers
from orchestrix.engine.explain import stuck as stuck_ones
from orchestrix.errors import NotFound
from orchestrix.persistence import dead_letters
from orchestrix.persistence.dead_letters import DeadLetter, DeadLetterFilter
from orchestrix.persistence.sagas import instances, redelivered_commands
from orchestrix.persistence.sagas.instance_pages import InstanceFilter, sort_value
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.definition import Saga
from orchestrix.saga.state import Instance
from orchestrix.saga.versions.migration import marked
from sagas.app_provisioning import APP_PROVISIONING as APP
from tests.architecture.source import PRODUCT, modules
from tests.conformance.store.build import some
from tests.conformance.store.plans import watched
from tests.integration.orchestration.rig import CATALOG, Rig
from tests.support import eventually

FOREVER = {"type": "DiskFull", "message": "no space left", "retryable": False}
LATER = {"type": "Busy", "message": "503 from the forge", "retryable": True, "retryAfterMs": 38_000}


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hindered_sagas, "LOSS_GRACE_S", 0.0)


async def ask(rig: Rig, app: Instance, verb: SagaAction, *, reason: str = "to see", **more: Any) -> None:
    """A person asks for something."""
    await rig.control.act(Action(app.saga, app.id, ActionRequest(verb, "ada", reason, **more)))


async def failed(rig: Rig, app: Instance, error: dict[str, Any]) -> None:
    """The command that is out is answered by a failure, which has come to the saga when this returns."""
    before = await rig.now(app)
    rig.report(before, "evt.stepFailed", saga=before.saga, error=error)

    async def told() -> bool:
        return (await rig.now(app)).version > before.version

    await eventually(told, deadline=5, message="the failure is told")


async def compensating(rig: Rig) -> Instance:
    """An app whose repository is to be undone."""
    app = await rig.begin("shop")
    rig.report(app, "evt.gitRepoCreated")
    await rig.reached(app, "REGISTERING")
    await failed(rig, app, FOREVER)
    return await rig.reached(app, "COMPENSATING")


def queue_of(rig: Rig, messages: int, consumers: int, *, only: str = "") -> None:
    """What the broker tells of every command's queue, or `only` of that one; the others are empty and heard."""

    async def message_count(queue: str) -> tuple[int, int] | None:
        return (messages, consumers) if only in ("", queue) else (0, 1)

    rig.broker.message_count = message_count  # type: ignore[method-assign]


async def undoing_both(rig: Rig, key: str) -> Instance:
    """An app that has failed in its second step, when nobody knows what that step has done."""
    app = await rig.begin(key)
    rig.report(app, "evt.gitRepoCreated")
    there = await rig.reached(app, "REGISTERING")
    await ask(rig, there, SagaAction.CANCEL)
    rig.report(there, "evt.appRegistered")
    return await rig.until(app, lambda one: one.progress.todo == ("registerApp", "createGitRepo"))


async def completed(rig: Rig) -> Instance:
    saga = await rig.begin("shop", saga="hasty")
    rig.report(saga, "evt.hurried")
    return await rig.reached(saga, "COMPLETED")


async def ended_badly(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await failed(rig, app, FOREVER)
    return await rig.reached(app, "FAILED")


async def failed_at_the_last_attempt(rig: Rig) -> Instance:
    declined = {"type": "CardDeclined", "message": "no funds", "retryable": True}
    saga = await rig.begin("shop", saga="hasty")
    for _ in range(2):
        await failed(rig, saga, {**declined, "retryAfterMs": 38_000})
        await ask(rig, saga, SagaAction.RETRY)
    await failed(rig, saga, declined)
    return await rig.reached(saga, "FAILED")


async def failed_by_time(rig: Rig) -> Instance:
    await rig.wakeups.start()
    saga = await rig.begin("shop", saga="hasty")
    return await rig.reached(saga, "FAILED", deadline=10)


async def failed_and_undo_skipped(rig: Rig) -> Instance:
    app = await undo_failed(rig)
    await ask(rig, app, SagaAction.SKIP)
    return await rig.reached(app, "FAILED")


async def failed_in_an_earlier_release(rig: Rig) -> Instance:
    app = await ended_badly(rig)
    async with rig.database.begin() as tx:
        names = "kind = NULL, step = NULL, message_type = NULL, error_type = NULL, error = NULL"
        await tx.execute(text(f"UPDATE app_state_history SET {names} WHERE app_id = {app.id}"))
    return app


async def cancelled(rig: Rig) -> Instance:
    app = await undoing_both(rig, "shop")
    rig.report(await rig.now(app), "evt.appUnregistered")
    there = await rig.until(app, lambda one: one.progress.todo == ("createGitRepo",))
    rig.report(there, "evt.gitRepoDeleted")
    return await rig.reached(app, "FAILED")


async def cancelled_with_a_skip(rig: Rig) -> Instance:
    app = await undo_failed(rig)
    await ask(rig, app, SagaAction.TERMINATE)
    await ask(rig, app, SagaAction.RETRY)
    rig.report(await rig.now(app), "evt.gitRepoCreated")
    await ask(rig, await rig.reached(app, "REGISTERING"), SagaAction.CANCEL, reason="a mistake")
    await failed(rig, app, FOREVER)
    await failed(rig, app, FOREVER)
    await ask(rig, await rig.reached(app, "COMPENSATION_FAILED"), SagaAction.SKIP)
    return await rig.reached(app, "FAILED")


async def terminated(rig: Rig) -> Instance:
    app = await undo_failed(rig)
    await ask(rig, app, SagaAction.TERMINATE)
    return app


async def terminated_on_its_way(rig: Rig) -> Instance:
    """Its step had failed, and was done at the next try."""
    app = await rig.begin("shop")
    await failed(rig, app, LATER)
    rig.report(app, "evt.gitRepoCreated")
    await ask(rig, await rig.reached(app, "REGISTERING"), SagaAction.TERMINATE)
    return app


async def cancelled_then_failed(rig: Rig) -> Instance:
    app = await cancelled(rig)
    await ask(rig, app, SagaAction.RETRY)
    await failed(rig, app, FOREVER)
    return await rig.reached(app, "FAILED")


async def undone_too_early(rig: Rig) -> Instance:
    app = await compensating(rig)
    rig.report(app, "evt.gitRepoDeleted")
    ended = await rig.reached(app, "FAILED")
    rig.report(ended, "evt.gitRepoCreated")

    async def sent() -> bool:
        return (await rig.now(app)).command_id is not None

    await eventually(sent, deadline=5, message="the undo is sent again")
    return app


async def paused(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await ask(rig, app, SagaAction.PAUSE)
    return app


async def paused_with_a_failure(rig: Rig) -> Instance:
    app = await paused(rig)
    await failed(rig, app, LATER)
    return app


async def undo_failed(rig: Rig) -> Instance:
    app = await compensating(rig)
    await failed(rig, app, {"type": "Denied", "message": "read-only disk", "retryable": False})
    return await rig.reached(app, "COMPENSATION_FAILED")


async def unsendable(rig: Rig) -> Instance:
    rig.broker.judge = lambda _: Published(Outcome.REFUSED, "20 MB is too large")
    app = await rig.begin("shop")

    async def blocked() -> bool:
        return (await rig.now(app)).blocker == "unsendable"

    await eventually(blocked, deadline=5)
    return app


async def of_another_version(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await change(rig, app, "definition_version = 7")
    return app


async def in_an_unknown_state(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await change(rig, app, "state = 'DEPLOYING'")
    return app


async def overdue(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    await change(rig, app, f"wake_at = '{ago(rig, 40)}'")
    return app


def ago(rig: Rig, seconds: int) -> str:
    """A moment of the past as the database writes it."""
    at = rig.database.now() - timedelta(seconds=seconds)
    return at.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


async def in_flight(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    await ask(rig, app, SagaAction.CANCEL)
    return app


async def in_flight_later(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    rig.report(app, "evt.gitRepoCreated")
    await rig.reached(app, "REGISTERING")
    await ask(rig, app, SagaAction.CANCEL)
    return app


async def in_flight_and_paused(rig: Rig) -> Instance:
    app = await in_flight(rig)
    await ask(rig, app, SagaAction.PAUSE)
    return app


async def in_flight_without_a_deadline(rig: Rig) -> Instance:
    app = await in_flight(rig)
    await ask(rig, app, SagaAction.CANCEL_DEADLINE)
    return app


async def in_flight_without_a_broker(rig: Rig) -> Instance:
    app = await in_flight(rig)
    rig.broker.go_down()
    return app


async def undone_and_paused(rig: Rig) -> Instance:
    app = await compensating(rig)
    await ask(rig, app, SagaAction.PAUSE)
    return app


async def waiting_for_a_retry(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await failed(rig, app, LATER)
    return app


async def undo_waiting_for_a_retry(rig: Rig) -> Instance:
    app = await compensating(rig)
    await failed(rig, app, LATER)
    return app


async def waiting_for_a_migration(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    async with rig.database.begin() as tx:
        await instances.write_progress(tx, APPS, [marked(app, tx.now() + timedelta(seconds=30))])
    rig.report(app, "evt.gitRepoCreated")
    return await rig.reached(app, "REGISTERING")


async def without_a_broker(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    rig.broker.go_down()
    return app


async def blocked_broker(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    rig.broker.blocked = "low on memory"
    return app


async def in_the_outbox(rig: Rig) -> Instance:
    def held(message: Outgoing) -> Published:
        return Published(Outcome.UNKNOWN, "no confirm")

    rig.broker.judge = held
    return await rig.begin("shop")


async def without_a_worker(rig: Rig) -> Instance:
    queue_of(rig, 31, 0)
    app = await rig.begin("shop")
    await rig.outbox_empty()
    return app


async def crashed(rig: Rig) -> Instance:
    """Its command has crashed three workers."""
    app = await rig.begin("shop")
    await rig.outbox_empty()
    command_id = (await rig.now(app)).command_id
    assert command_id is not None
    record = RedeliveryRecord(command_id, "cmd.createGitRepo", app.saga, app.id, 3, "it waits behind others")
    await rig.database.run(lambda tx: redelivered_commands.put(tx, record))
    return app


async def crashed_all(rig: Rig) -> Instance:
    queue_of(rig, 1, 0)
    return await crashed(rig)


async def crashed_and_answered(rig: Rig) -> Instance:
    app = await crashed(rig)
    await failed(rig, app, LATER)
    return app


async def without_a_worker_for_one(rig: Rig) -> Instance:
    queue_of(rig, 1, 0)
    app = await compensating(rig)
    await rig.outbox_empty()
    return app


async def behind_others(rig: Rig) -> Instance:
    queue_of(rig, 5000, 2)
    app = await rig.begin("shop")
    await rig.outbox_empty()
    return app


async def known_to_be_behind_others(rig: Rig) -> Instance:
    app = await behind_others(rig)
    queue_of(rig, 31, 2)
    await change(rig, app, "wake_reason = 'backlog'")
    return app


async def at_work_while_others_wait(rig: Rig) -> Instance:
    app = await behind_others(rig)
    await change(rig, app, "begun_id = command_id")
    return app


async def held(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await failed(rig, app, {"type": "Hold", "message": "the name is a trademark", "hold": True})
    return await rig.until(app, lambda one: one.blocker == "held")


async def cloned(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await change(rig, app, "blocker = 'cloned', wake_at = NULL, wake_reason = NULL")
    return app


async def in_flight_without_a_worker(rig: Rig) -> Instance:
    queue_of(rig, 1, 0)
    return await in_flight(rig)


async def in_flight_without_a_worker_for_the_undo(rig: Rig) -> Instance:
    queue_of(rig, 0, 0, only="cmd.deleteGitRepo")
    return await in_flight(rig)


async def undone_too_early_without_a_worker(rig: Rig) -> Instance:
    queue_of(rig, 1, 0, only="cmd.deleteGitRepo")
    return await undone_too_early(rig)


async def answered_in_vain(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    await buried(rig, app)
    return app


async def in_flight_and_answered_in_vain(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    await buried(rig, app)
    await ask(rig, app, SagaAction.CANCEL)
    return app


async def buried(rig: Rig, app: Instance, *, proven: bool = True) -> DeadLetter:
    """An answer comes that the saga's model refuses; it has come to the dead letters when this returns."""
    rig.report(app, "evt.gitRepoCreated", data={"repoUrl": 5}, proven=proven)
    await eventually(lambda: any(one.exchange == DEAD for one in rig.broker.published), deadline=5)
    (dead,) = [one for one in rig.broker.published if one.exchange == DEAD]
    mover = DeadLetterCollector(rig.database, rig.broker, CATALOG, rig.relay.notify)
    await mover.start()
    more = {"exchange": DEAD, "routing_key": dead.routing_key, "headers": dead.headers}
    rig.broker.put(f"{dead.routing_key}.dead", dead.body, **more)
    await eventually(lambda: letters(rig), deadline=5, message="the letter is kept")
    await mover.stop()
    (letter,) = await letters(rig)
    return letter


async def letters(rig: Rig) -> list[DeadLetter]:
    async with rig.database.read() as connection:
        return await dead_letters.page(connection, DeadLetterFilter(), 10)


async def with_a_worker_that_stops(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    queue_of(rig, 0, 0)
    return app


async def in_flight_with_a_worker_that_stops(rig: Rig) -> Instance:
    app = await with_a_worker_that_stops(rig)
    await ask(rig, app, SagaAction.CANCEL)
    return app


async def in_a_dev_that_stops(rig: Rig) -> Instance:
    rig.phase = "stopping"
    return await with_a_worker_that_stops(rig)


async def without_a_deadline(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    await ask(rig, app, SagaAction.CANCEL_DEADLINE)
    return app


async def without_a_second_deadline(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await ask(rig, app, SagaAction.CANCEL_DEADLINE, reason="at first")
    await ask(rig, app, SagaAction.SET_DEADLINE, extend_by=timedelta(minutes=5))
    await ask(rig, app, SagaAction.CANCEL_DEADLINE, reason="no hurry")
    await rig.outbox_empty()
    return app


async def other_saga_without_a_deadline(rig: Rig) -> Instance:
    saga = await rig.begin("shop", saga="calm")
    await rig.outbox_empty()
    await ask(rig, saga, SagaAction.CANCEL_DEADLINE)
    return saga


async def undo_without_a_deadline(rig: Rig) -> Instance:
    app = await compensating(rig)
    await rig.outbox_empty()
    await ask(rig, app, SagaAction.CANCEL_DEADLINE)
    return app


async def in_work(rig: Rig) -> Instance:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    return app


async def change(rig: Rig, app: Instance, values: str) -> None:
    """Writes to the row past everything."""
    async with rig.database.begin() as tx:
        await tx.execute(text(f"UPDATE apps SET {values} WHERE id = {app.id}"))


SECONDS = r"(?:[1-5]?\d s|1 min)"
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
Situation = Callable[[Rig], Awaitable[Instance]]
SITUATIONS: Final[list[tuple[Situation, str, str, str]]] = [
    (completed, "completed", r"^Completed\.$", "Nothing to do."),
    (ended_badly, "failed", r"^Failed: .*DiskFull: no space left.*\.", "`retry`"),
    (
        failed_at_the_last_attempt,
        "failed",
        rf"^Failed: step hurry, attempt 3 of 3, at {TIME}: CardDeclined: no funds\.$",
        "Fix the cause, then `retry` it from the beginning: `orchestrix sagas retry hasty 1`.",
    ),
    (failed_by_time, "failed", rf"^Failed: step hurry, attempt 3 of 3, at {TIME}: timed out\.$", "sagas retry hasty 1"),
    (
        failed_and_undo_skipped,
        "failed",
        rf"^Failed: step registerApp, attempt 1 of 5, at {TIME}: DiskFull: no space left\.$",
        "`orchestrix apps retry 1`",
    ),
    (
        failed_in_an_earlier_release,
        "failed",
        r"^Failed: evt\.stepFailed: DiskFull: no space left\.$",
        "`orchestrix apps retry 1`",
    ),
    (
        cancelled,
        "failed",
        rf"^Cancelled by ada at {TIME} \(to see\): everything is undone\.$",
        "Nothing to do; if that was a mistake, `retry` runs it again from the beginning.",
    ),
    (
        cancelled_with_a_skip,
        "failed",
        rf"^Cancelled by ada at {TIME} \(a mistake\): everything is undone except the skipped steps\.$",
        "`retry`",
    ),
    (
        terminated,
        "failed",
        rf"^Terminated by ada at {TIME} \(to see\): not undone: createGitRepo\. It had failed before that: "
        rf"step registerApp, attempt 1 of 5, at {TIME}: .*DiskFull: no space left",
        "`retry`",
    ),
    (
        terminated_on_its_way,
        "failed",
        rf"^Terminated by ada at {TIME} \(to see\): not undone: registerApp, createGitRepo\.$",
        "`retry`",
    ),
    (cancelled_then_failed, "failed", r"^Failed: .*DiskFull", "Fix the cause, then `retry`"),
    (
        undone_too_early,
        "late_undo",
        r"^Failed; step createGitRepo succeeded after that\. Its undo was sent",
        "`redispatch`",
    ),
    (
        undone_too_early_without_a_worker,
        "late_undo",
        r"is not answered yet\. cmd\.deleteGitRepo has 1 message and no consumer\.$",
        "Start a worker with `orchestrix worker -q cmd.deleteGitRepo`.",
    ),
    (
        paused,
        "paused",
        rf"^Paused by ada at {TIME} \(to see\) while step createGitRepo was running\."
        r" The step may be running: a success counts at once; the next step waits for `resume`\.$",
        "`resume` it, or `cancel` it",
    ),
    (paused_with_a_failure, "paused", r"A failure is kept until `resume`: .*503 from the forge", "`resume`"),
    (undo_failed, "undo_failed", r"The undo of step createGitRepo failed permanently: .*read-only disk", "`skip`"),
    (unsendable, "unsendable", r"The command of step createGitRepo cannot be sent: .*20 MB is too large", "`edit`"),
    (
        in_an_unknown_state,
        "unknown_state",
        r"^State DEPLOYING does not exist in version 1 of saga 'app' as this node has it\.$",
        "`terminate`",
    ),
    (
        of_another_version,
        "unknown_version",
        r"does not know version 7 of saga 'app'.*Its events are held",
        "`terminate`",
    ),
    (overdue, "overdue", r"^Overdue: it was due 4\d s ago, and no node has processed it\.$", "Start a node"),
    (
        in_flight,
        "in_flight",
        rf"^Cancelled; waiting for the answer of step createGitRepo, until {TIME} at the latest "
        rf"\(in {SECONDS}; later if the broker is down\)\. "
        r"Then it undoes createGitRepo \(unless it failed\)\.$",
        "`orchestrix deadlines extend 1 --at TIME`, or `terminate` to undo nothing.",
    ),
    (
        in_flight_later,
        "in_flight",
        r"answer of step registerApp, .* Then it undoes registerApp \(unless it failed\), createGitRepo\.$",
        "Wait, end the wait sooner",
    ),
    (
        in_flight_without_a_deadline,
        "no_deadline",
        r"^Cancelled; waiting for the answer of step createGitRepo, without a deadline "
        rf"\(cancelled by ada at {TIME} \(to see\)\)\. After the answer it undoes createGitRepo \(unless",
        "set a deadline with `orchestrix deadlines extend 1 --by 5m`, or `terminate` to undo nothing.",
    ),
    (
        in_flight_without_a_worker,
        "no_consumer",
        r"^Cancelled; waiting for the answer of step createGitRepo\. cmd\.createGitRepo has 1 message and no "
        r"consumer and cmd\.deleteGitRepo has 1 message and no consumer\. After the answer, .*, it undoes create",
        "`orchestrix worker -q cmd.createGitRepo -q cmd.deleteGitRepo`, or `terminate` to undo nothing.",
    ),
    (
        in_flight_without_a_worker_for_the_undo,
        "no_consumer",
        r"^Cancelled; .* createGitRepo\. cmd\.deleteGitRepo has 0 messages and no consumer\. After the",
        "`orchestrix worker -q cmd.deleteGitRepo`, or",
    ),
    (
        answered_in_vain,
        "dead_letter",
        rf"^An answer to step createGitRepo at {TIME} was rejected: bad-output: repoUrl: .* letter [0-9a-f]+",
        "`orchestrix dlq redrive ",
    ),
    (
        in_flight_and_answered_in_vain,
        "dead_letter",
        rf"^An answer to step createGitRepo at {TIME} was rejected: bad-output",
        "`orchestrix dlq show ",
    ),
    (
        in_flight_without_a_broker,
        "broker_down",
        r"^RabbitMQ is unreachable: .+\.",
        "Restart the broker. No data is lost",
    ),
    (
        in_flight_and_paused,
        "paused",
        r"\(to see\) while step createGitRepo was running\. It was cancelled: after `resume` it undoes create",
        "`resume` it, or `terminate` to undo nothing more.",
    ),
    (
        undone_and_paused,
        "paused",
        rf"^Paused by ada at {TIME} \(to see\) while the undo of step createGitRepo was running\."
        r" The undo may be running: a success counts at once and ends the undo; the saga is then FAILED\.$",
        "`resume` it, or `terminate` to undo nothing more.",
    ),
    (
        waiting_for_a_retry,
        "retry",
        r"^Step createGitRepo, attempt 1 of 5, failed: .*503 from the forge; retrying in 3\d s\.$",
        "`retry` to retry now",
    ),
    (
        waiting_for_a_migration,
        "migration",
        r"The command of step registerApp waits for `sagas migrate`, .*, for at most [23]\d s\.",
        "`retry` to send it now",
    ),
    (
        undo_waiting_for_a_retry,
        "retry",
        r"^The undo of step createGitRepo, attempt 1 of 5, failed: .*503 from the forge; retrying in 3\d s\.$",
        "`retry` to retry now",
    ),
    (without_a_broker, "broker_down", r"^RabbitMQ is unreachable: .+\.", "Restart the broker. No data is lost"),
    (blocked_broker, "broker_down", r"^RabbitMQ is unreachable: low on memory\.$", "Restart the broker"),
    (
        in_the_outbox,
        "unsent",
        r"The command of step createGitRepo has not left the outbox yet\.",
        "`orchestrix doctor`",
    ),
    (
        without_a_worker,
        "no_consumer",
        r"cmd\.createGitRepo has 31 messages and no consumer\.",
        "`orchestrix worker -q cmd.createGitRepo`",
    ),
    (
        crashed,
        "workers_died",
        r"^3 workers died while processing cmd\.createGitRepo; it waits behind others\.$",
        "Wait, or fix what the logs of the workers and of their machines show, or `cancel` it: then no worker runs it.",
    ),
    (
        crashed_all,
        "workers_died",
        r"^3 workers died .* behind others\. cmd\.createGitRepo has 1 message and no consumer\.$",
        "Fix what the logs of the workers and of their machines show, or `cancel` it: then no worker runs it. Then: ",
    ),
    (crashed_and_answered, "retry", r"attempt 1 of 5, failed: ", "Wait, or `retry` to retry now."),
    (
        without_a_worker_for_one,
        "no_consumer",
        r"cmd\.deleteGitRepo has 1 message and no consumer\.",
        "`orchestrix worker -q cmd.deleteGitRepo`",
    ),
    (
        with_a_worker_that_stops,
        "no_consumer",
        r"^cmd\.createGitRepo has 0 messages and no consumer: its last worker is still processing this "
        r"command, but is stopping or takes no more for now\.$",
        "Start another worker with `orchestrix worker -q cmd.createGitRepo`.",
    ),
    (
        in_flight_with_a_worker_that_stops,
        "no_consumer",
        r"^Cancelled; waiting for the answer of step createGitRepo\. cmd\.createGitRepo has 0 messages and no "
        r"consumer: its last worker is still processing this command, but is stopping or takes no more for now and "
        r"cmd\.deleteGitRepo has 0 messages and no consumer\. After the answer",
        "Start another worker with `orchestrix worker -q cmd.createGitRepo -q cmd.deleteGitRepo`, or `terminate`",
    ),
    (
        in_a_dev_that_stops,
        "no_consumer",
        r"^cmd\.createGitRepo has 0 messages and no consumer; this `orchestrix dev` is stopping",
        "Start `orchestrix dev` again once it has stopped: the work resumes.",
    ),
    (
        held,
        "held",
        r"^Step createGitRepo waits for an operator: the name is a trademark\.$",
        "`retry` it (with `--data` on changed data), `skip` the step, or `cancel`",
    ),
    (
        cloned,
        "cloned",
        r"^Copied from another installation while waiting for step createGitRepo: nothing is done for it here\.$",
        "`resume` it to continue here, or `cancel` it",
    ),
    (
        known_to_be_behind_others,
        "backlog",
        r"^cmd\.createGitRepo waits in its queue behind 30 others, read by 2 consumers \(attempt 1 of 5\)\. "
        r"Waiting does not use up its timeout\.",
        "start more workers",
    ),
    (
        at_work_while_others_wait,
        "in_progress",
        r"^A worker is processing step createGitRepo \(attempt 1 of 5\); it times out in (?:[1-5]?\d s|1 min)\.$",
        "Wait.",
    ),
    (
        behind_others,
        "backlog",
        r"cmd\.createGitRepo may wait in its queue behind up to 5000 others, read by 2 consumers \(attempt 1 of 5\)\. "
        r"Waiting does not",
        "start more workers",
    ),
    (
        without_a_deadline,
        "no_deadline",
        r"^Waiting for step createGitRepo \(attempt 1 of 5\) without a deadline "
        rf"\(cancelled by ada at {TIME} \(to see\)\)\.$",
        "Wait, set a deadline with `orchestrix deadlines extend 1 --by 5m`, `skip` the step or `cancel`.",
    ),
    (without_a_second_deadline, "no_deadline", rf"cancelled by ada at {TIME} \(no hurry\)\)\.$", "set a deadline with"),
    (
        other_saga_without_a_deadline,
        "no_deadline",
        r"^Waiting for step hurry \(attempt 1 of 3\) without a deadline",
        "`orchestrix deadlines extend 1 --saga calm --by 5m`",
    ),
    (
        undo_without_a_deadline,
        "no_deadline",
        r"^Waiting for the undo of step createGitRepo \(attempt 1 of 5\) without a deadline \(cancelled by ada",
        "--by 5m`, or `terminate` to undo nothing more.",
    ),
    (
        in_work,
        "in_progress",
        rf"A worker is processing step createGitRepo \(attempt 1 of 5\); it times out in {SECONDS}",
        "Wait",
    ),
]


def _name(one: object) -> str:
    return getattr(one, "__name__", "")


async def stuck(rig: Rig, app: Instance, **wanted: Any) -> bool:
    """Whether the list of what is stuck has it; the list of the others has it otherwise.

    Both say the same where there are too many to be named.
    """
    saga = CATALOG.saga(app.saga)
    assert saga is not None
    await rig.check_consumers()
    said = []
    for named in (stuck_ones.NAMED_INSTANCES_LIMIT, 0):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stuck_ones, "NAMED_INSTANCES_LIMIT", named)
            found, others = [
                [
                    one.id
                    for one in await rig.stuck.page(saga, InstanceFilter(stuck=which, **wanted), "-createdAt", 10, None)
                ]
                for which in (True, False)
            ]
        assert sorted([*found, *others]) == [app.id]
        said.append(app.id in found)
    assert said[0] == said[1]
    return said[0]


HELD = {"paused", "held", "cloned", "undo_failed", "unsendable", "dead_letter", "broker_down", "no_consumer", "overdue"}
HELD |= {"workers_died"}
"""What the list of the stuck has: these wait for a person, for the broker, or for workers or nodes that are not there.
"""


@pytest.mark.parametrize(("situation", "code", "sentence", "action"), SITUATIONS, ids=_name)
async def test_why(rig: Rig, situation: Situation, code: str, sentence: str, action: str) -> None:
    app = await situation(rig)
    found = await rig.explainer.why(app.saga, app.id)
    assert found.blocker == code, found
    assert re.search(sentence, found.sentence), found.sentence
    assert action in found.next_action
    now = await rig.now(app)
    assert found.since == now.updated_at
    assert (found.next_at is None) == (now.wake_at is None or code == "no_deadline"), "when the machine acts itself"
    assert await stuck(rig, app) is (code in HELD)
    if code in HELD:
        assert await rig.explainer.several([now]) == [await rig.explainer.why(app.saga, app.id)], "as in the list"


@pytest.mark.parametrize("situation", [overdue, without_a_broker, in_the_outbox, without_a_worker], ids=_name)
async def test_what_a_node_is_about_to_do_is_nobody_elses_while_it_starts(rig: Rig, situation: Situation) -> None:
    app = await situation(rig)
    rig.phase = "starting"
    assert (await rig.explainer.why(app.saga, app.id)).next_action == "Wait: this node is still starting."


async def test_what_waits_for_a_person_does_so_while_a_node_starts(rig: Rig) -> None:
    app = await paused(rig)
    rig.phase = "starting"
    assert "`resume` it" in (await rig.explainer.why(app.saga, app.id)).next_action


async def test_the_list_of_the_stuck_narrows_as_others_do(rig: Rig) -> None:
    app = await without_a_worker(rig)
    await rig.check_consumers()
    assert await rig.stuck.page(APP, InstanceFilter(("REGISTERING",), stuck=True), "-createdAt", 10, None) == []
    assert await rig.stuck.page(APP, InstanceFilter(created_by="bob", stuck=True), "-createdAt", 10, None) == []
    for sort in ("createdAt", "-updatedAt", "appName"):
        (found,) = await rig.stuck.page(APP, InstanceFilter(("APP_INITIATED",), "ada", stuck=True), sort, 10, None)
        assert found.id == app.id


async def test_pages_of_the_stuck_pass_over_those_whose_worker_is_there(rig: Rig) -> None:
    """The row of one that is undone does not tell by its state which of the commands is out."""
    queue_of(rig, 1, 0, only="cmd.unregisterApp")
    held = [await undoing_both(rig, name) for name in ("a", "b", "c")]
    rig.report(held[1], "evt.appUnregistered")
    undone = await rig.until(held[1], lambda one: one.progress.todo == ("createGitRepo",))
    assert undone.state == "COMPENSATING"
    await rig.check_consumers()
    first = await rig.stuck.page(APP, InstanceFilter(stuck=True), "createdAt", 1, None)
    after = first[0].created_at, first[0].id
    rest = await rig.stuck.page(APP, InstanceFilter(stuck=True), "createdAt", 1, after)
    assert [one.id for one in (*first, *rest)] == [held[0].id, held[2].id]
    assert [one.id for one in await rig.stuck.page(APP, InstanceFilter(stuck=False), "createdAt", 5, None)] == [
        undone.id
    ]


@pytest.mark.parametrize("named", [2, 3], ids=["too many to be named", "all are named"])
@pytest.mark.parametrize("sort", ["createdAt", "-updatedAt"])
async def test_nothing_is_cut_from_the_list_where_many_are_overdue(
    rig: Rig, named: int, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_ones, "NAMED_INSTANCES_LIMIT", named)
    apps = [await rig.begin(key) for key in "abcde"]
    await rig.outbox_empty()
    for app in apps[:3]:
        await change(rig, app, f"wake_at = '{ago(rig, 40)}'")
    seen: list[int] = []
    after = None
    while found := await rig.stuck.page(APP, InstanceFilter(stuck=True), sort, 1, after):
        seen += [one.id for one in found]
        after = sort_value(sort, found[-1]), found[-1].id
    assert sorted(seen) == [app.id for app in apps[:3]]
    moving = await rig.stuck.page(APP, InstanceFilter(stuck=False), sort, 10, None)
    assert sorted(one.id for one in moving) == [app.id for app in apps[3:]]


async def test_a_list_asks_the_broker_for_no_queue_of_commands(rig: Rig) -> None:
    """The rows say it."""
    asked: list[str] = []

    async def message_count(queue: str) -> tuple[int, int] | None:
        asked.append(queue)
        return 0, 1

    rig.broker.message_count = message_count  # type: ignore[method-assign]
    for key in "abc":
        await rig.begin(key)
    for _ in range(3):
        assert await rig.stuck.page(APP, InstanceFilter(stuck=True), "-createdAt", 10, None) == []
    assert asked == []


@pytest.mark.parametrize("reason", ["unsent", "broker_down", "no_consumer"])
async def test_what_is_said_agrees_with_the_list_when_what_the_row_says_is_just_over(rig: Rig, reason: str) -> None:
    app = await without_a_worker(rig)
    if reason == "no_consumer":
        assert await stuck(rig, app)
        assert (await rig.now(app)).wake_reason == "deadline"
    else:
        await change(rig, app, f"wake_reason = '{reason}', hindered_by = '{reason}'")
    queue_of(rig, 0, 1)
    (listed,) = await rig.stuck.page(APP, InstanceFilter(stuck=True), "-createdAt", 10, None)
    assert listed.id == app.id
    found = await rig.explainer.why("app", app.id)
    assert (found.blocker, found.next_action) == (reason, "Wait.")
    assert re.match("Step createGitRepo waited for .*; that is over", found.sentence)


async def test_many_are_explained_by_as_few_statements_as_one(rig: Rig) -> None:
    queue_of(rig, 31, 0)
    apps = [await rig.begin(f"app-{n}") for n in range(20)]
    await rig.outbox_empty()
    await ask(rig, apps[0], SagaAction.PAUSE)
    rows = [await rig.now(app) for app in apps]
    await rig.explainer.several(rows)
    with watched(rig.database) as sent:
        assert {found.blocker for found in await rig.explainer.several(rows[1:]) if found} == {"no_consumer"}
    assert len(sent) == 3
    gone = replace(rows[0], id=4711)
    paused_one, missing = await rig.explainer.several([rows[0], gone])
    assert paused_one is not None
    assert (paused_one.blocker, missing) == ("paused", None)


@pytest.mark.parametrize("count", [2, 20_000])
async def test_the_stuck_of_all_sagas_are_found_by_as_few_statements_as_there_are_tables(rig: Rig, count: int) -> None:
    """One for each pair of tables, and one for the dead letters."""
    queue_of(rig, 31, 0)
    await some(rig.database, count)
    late, own = await rig.begin("late"), await rig.begin("own", saga="calm")
    await rig.outbox_empty()
    await change(rig, late, f"wake_at = '{ago(rig, 40)}', hindered_by = NULL")
    await rig.check_consumers()
    names = sorted({saga.name for saga in CATALOG})
    sagas = [saga for name in names if (saga := CATALOG.saga(name)) is not None and not _has_jobs(saga)]
    assert len(sagas) > 2
    with watched(rig.database) as sent:
        found = await rig.stuck.newest(sagas, 5, {APPS: None, INSTANCES: None})
    assert len(sent) == 5
    assert [(one.saga, one.key) for one in (found[0], found[-1])] == [("app", "late"), ("calm", own.key)]
    assert {one.hindered_by for one in found} == {"no_consumer"}
    assert len(found) == min(5, count + 1) + 1


def _has_jobs(saga: Saga) -> bool:
    return any(step.job is not None for step in saga.steps)


async def test_what_its_worker_has_begun_waits_for_no_other(rig: Rig) -> None:
    app = await without_a_worker(rig)
    await change(rig, app, "begun_id = command_id")
    assert (await rig.explainer.why("app", app.id)).blocker == "in_progress"
    assert not await stuck(rig, app)


async def test_a_letter_that_is_sent_again_is_not_the_reason_any_more(rig: Rig) -> None:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    letter = await buried(rig, app)
    assert letter.id in (await rig.explainer.why("app", app.id)).sentence
    body = json.dumps({"appId": app.id, "correlationId": app.correlation_id, "data": {"repoUrl": "x"}})
    work = DeadLetterService(rig.database, CATALOG, rig.relay.notify)
    await work.edit(letter.id, body.encode(), DeadLetterRequester("ada", "mended"))
    await work.redrive(letter.id, DeadLetterRequester("ada", "mended"))
    assert (await rig.explainer.why("app", app.id)).blocker == "in_progress"
    assert not await stuck(rig, app)


async def test_an_answer_that_came_to_no_queue_is_the_reason(rig: Rig) -> None:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    letter = await buried(rig, app)
    work = DeadLetterService(rig.database, CATALOG, rig.relay.notify)
    await work.drop(letter.id, DeadLetterRequester("ada", "the next one"))
    unrouted = replace(letter, id="unrouted", queue=UNROUTED, reason="unrouted")
    await rig.database.run(lambda tx: dead_letters.record(tx, [unrouted]))
    assert "letter unrouted" in (await rig.explainer.why("app", app.id)).sentence
    assert await stuck(rig, app)
    await work.drop("unrouted", DeadLetterRequester("ada", "the next one"))
    other = replace(unrouted, id="other", routing_key="evt.appRegistered", type="evt.appRegistered")
    await rig.database.run(lambda tx: dead_letters.record(tx, [other]))
    assert (await rig.explainer.why("app", app.id)).blocker == "in_progress"
    assert not await stuck(rig, app)


async def test_it_is_the_reason_still_when_its_saga_gets_more_time(rig: Rig) -> None:
    app = await rig.begin("shop")
    await rig.outbox_empty()
    await buried(rig, app)
    await change(rig, app, "version = 2, updated_at = '2099-01-01 00:00:00.000000'")  # long after the letter
    assert (await rig.explainer.why("app", app.id)).blocker == "dead_letter"
    assert await stuck(rig, app)


@pytest.mark.parametrize("proven", [True, False])
async def test_a_letter_of_an_earlier_try_is_not_the_reason(rig: Rig, proven: bool) -> None:
    """It says so itself, or was there before the last change."""
    app = await rig.begin("shop")
    await rig.outbox_empty()
    await buried(rig, app, proven=proven)
    if proven:
        await change(rig, app, "command_id = 'of-the-next-try'")
    else:
        await change(rig, app, "updated_at = '2099-01-01 00:00:00.000000'")
    assert (await rig.explainer.why("app", app.id)).blocker == "in_progress"
    assert not await stuck(rig, app)


async def test_what_is_said_about_a_deadline_helps(rig: Rig) -> None:
    app = await without_a_deadline(rig)
    await ask(rig, app, SagaAction.SET_DEADLINE, extend_by=timedelta(minutes=5))
    found = await rig.explainer.why(app.saga, app.id)
    assert (found.blocker, found.next_at) == ("in_progress", (await rig.now(app)).wake_at)


def test_each_entry_of_the_catalogue_has_its_situation() -> None:
    names = {why.__name__, pause.__name__, workers.__name__, worker_crash.__name__}
    trees = [one.tree for one in modules(*PRODUCT) if one.name in names]
    codes = {code for tree in trees for node in ast.walk(tree) if (code := _code(node)) is not None}
    assert len(codes) > len(why.CATALOGUE) - 1
    assert codes == {code for _, code, *_ in SITUATIONS}


def _code(node: ast.AST) -> str | None:
    """The code that a `return "code", sentence, action` or a `return Explanation("code", ...)` gives."""
    match node:
        case ast.Return(value=ast.Tuple(elts=[first, *_])):
            pass
        case ast.Return(value=ast.Call(func=ast.Name(id="SagaExplanation"), args=[first, *_])):
            pass
        case _:
            return None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


async def test_nobody_can_say_why_a_saga_waits_that_is_not_there(rig: Rig) -> None:
    with pytest.raises(NotFound):
        await rig.explainer.why("app", 4711)
