"""Does what is committed reach the broker in order, whatever the broker says?"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrix.broker.port import Outcome, Outgoing, Published, Topology
from orchestrix.broker.topology import job_channels, to_json
from orchestrix.engine.control import Action
from orchestrix.errors import Unavailable
from orchestrix.outbox.rows import row_for
from orchestrix.persistence import outbox
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.commands import command_for
from orchestrix.saga.messages import Command
from orchestrix.saga.state import Instance
from sagas.app_provisioning import APP_PROVISIONING
from tests.integration.orchestration.rig import Rig
from tests.support import eventually

CONFIRMED = Published(Outcome.CONFIRMED)


@pytest.mark.req("S3-17", "S3-40", "DC-4")
async def test_a_committed_start_is_sent_once_and_leaves_the_outbox(rig: Rig) -> None:
    app = await rig.begin("one")
    await rig.outbox_empty()
    assert rig.sent("cmd.createGitRepo") == [app.command_id]


async def test_what_is_committed_while_the_broker_is_away_is_sent_when_it_is_back(rig: Rig) -> None:
    rig.broker.go_down()
    apps = [await rig.begin(f"app-{n}") for n in range(5)]
    assert await rig.in_outbox() == 5
    rig.broker.come_up()
    await rig.outbox_empty()
    assert sorted(rig.sent("cmd.createGitRepo")) == sorted(str(app.command_id) for app in apps)


async def test_an_unconfirmed_message_is_sent_again_under_its_id(rig: Rig) -> None:
    answers = iter([Published(Outcome.UNKNOWN, "late")])
    rig.broker.judge = lambda _: next(answers, CONFIRMED)
    app = await rig.begin("retried")
    await rig.outbox_empty()
    assert [message.message_id for message in rig.broker.tried] == [app.command_id, app.command_id]


async def test_a_message_without_a_queue_is_sent_again_after_declaring(rig: Rig) -> None:
    rig.broker.judge = lambda _: CONFIRMED if rig.broker.declared else Published(Outcome.RETURNED, "no route")
    await rig.begin("homeless")
    await rig.outbox_empty()
    assert rig.broker.declared == 1


async def test_a_row_that_brings_its_queues_is_sent_when_they_are_declared(rig: Rig) -> None:
    names = ["orchestrix.job.j-1.status", "orchestrix.job.j-1.logs"]
    ready: list[bool] = []

    def judge(_: Outgoing) -> Published:
        ready.append(rig.broker.names >= set(names))
        return CONFIRMED

    rig.broker.judge = judge
    app = await rig.begin("bare")
    row = replace(row_for(app, command_of(app)), id="m-1", saga="(jobs)", topology=to_json(job_channels("j-1")))
    rows = [row, replace(row, id="m-2", instance_id=app.id + 1)]
    async with rig.database.begin() as tx:
        await outbox.insert(tx, rows[:1], claimed_by=None, lease_s=0.0)
        await outbox.insert(tx, rows[1:], claimed_by="rig-1", lease_s=5.0)
    rig.relay.take(rows[1:])
    rig.relay.notify()
    await rig.outbox_empty()
    assert {message.message_id for message in rig.broker.published} == {app.command_id, "m-1", "m-2"}
    assert ready == [False, True, True], "the command did not wait for them"


async def test_rows_that_bring_queues_wait_for_a_broker_that_cannot_declare(rig: Rig) -> None:
    app = await rig.begin("bare")
    await rig.outbox_empty()
    answers = iter([Unavailable("not now")])
    declare = rig.broker.declare

    async def refusing(topology: Topology) -> None:
        if (refusal := next(answers, None)) is not None:
            raise refusal
        await declare(topology)

    rig.broker.declare = refusing  # type: ignore[method-assign]
    row = replace(row_for(app, command_of(app)), id="m-1", saga="(jobs)", topology=to_json(job_channels("j-1")))
    async with rig.database.begin() as tx:
        await outbox.insert(tx, [row], claimed_by="rig-1", lease_s=5.0)
    rig.relay.take([row])
    await rig.outbox_empty()
    assert rig.broker.events(row.routing_key)[-1].message_id == "m-1"


def command_of(app: Instance) -> Command:
    """The command that the app has out."""
    command = command_for(APP_PROVISIONING, app)
    assert command is not None
    return command


async def test_an_unsendable_message_blocks_its_own_saga_alone(rig: Rig) -> None:
    def judge(message: Outgoing) -> Published:
        return Published(Outcome.REFUSED, "too large") if message.correlation_id == "c-bad" else CONFIRMED

    rig.broker.judge = judge
    bad, good = await rig.begin("bad"), await rig.begin("good")

    async def blocked() -> bool:
        return (await rig.now(bad)).blocker == "unsendable"

    await eventually(blocked, deadline=5)
    rows = await rig.history(bad)
    assert [(row.version, row.from_state, row.to_state) for row in rows][-1] == (2, "APP_INITIATED", "APP_INITIATED")
    assert "too large" in rows[-1].reason
    rig.report(good, "evt.gitRepoCreated")
    await rig.reached(good, "REGISTERING")

    async def parked_alone() -> bool:
        return await rig.in_outbox() == 1

    await eventually(parked_alone, deadline=5, message="the parked row stays for a person, the others leave")


async def test_one_message_that_closes_the_channel_is_found_among_the_others(rig: Rig) -> None:
    rig.broker.go_down()
    apps = [await rig.begin(f"app-{n}") for n in range(4)]

    def judge(message: Outgoing) -> Published:
        alone = rig.broker.batches[-1] == 1
        guilty = message.correlation_id == "c-app-2"
        if alone and not guilty:
            return CONFIRMED
        return Published(Outcome.UNKNOWN, "406 PRECONDITION_FAILED", channel_closed=True)

    rig.broker.judge = judge
    rig.broker.come_up()

    async def three_sent() -> bool:
        return len(rig.broker.published) == 3 and (await rig.now(apps[2])).blocker == "unsendable"

    await eventually(three_sent, deadline=5)


async def test_no_first_copy_overtakes_an_older_one_of_its_saga(rig: Rig) -> None:
    """The second command is owed while the first was never sent: a foreign worker's event names no cause."""
    held = True

    def judge(message: Outgoing) -> Published:
        first = message.routing_key == "cmd.createGitRepo"
        return Published(Outcome.UNKNOWN, "held") if held and first else CONFIRMED

    rig.broker.judge = judge
    app = await rig.begin("impatient")
    rig.report(app, "evt.gitRepoCreated", proven=False)
    await rig.reached(app, "REGISTERING")
    await eventually(lambda: len(rig.broker.tried) > 5, deadline=5)
    assert {message.routing_key for message in rig.broker.tried} == {"cmd.createGitRepo"}
    held = False
    await rig.outbox_empty()
    assert [message.routing_key for message in rig.broker.published] == ["cmd.createGitRepo", "cmd.registerApp"]


@pytest.mark.req("S3-48")
async def test_rows_of_a_dead_node_are_taken_over_when_their_claim_runs_out(rig: Rig) -> None:
    rig.broker.go_down()
    app = await rig.begin("orphan")
    command = command_for(APP_PROVISIONING, app)
    assert command is not None
    await rig.relay.stop()  # its claims end with it
    async with rig.database.begin() as tx:
        await outbox.delete(tx, [command.id])
        await outbox.insert(tx, [row_for(app, command)], claimed_by="dead-node", lease_s=0.5)
    rig.broker.come_up()
    await rig.relay.start()
    await rig.outbox_empty(deadline=8)
    assert rig.sent("cmd.createGitRepo") == [app.command_id]


async def test_a_late_confirm_gives_the_step_its_whole_time(rig: Rig) -> None:
    rig.broker.go_down()
    app = await rig.begin("late")

    async def late() -> bool:
        return (rig.database.now() - app.created_at).total_seconds() > 1.1

    await eventually(late, deadline=5)
    rig.broker.come_up()
    await rig.outbox_empty()
    row = await rig.now(app)
    assert row.wake_at is not None
    assert app.wake_at is not None
    assert (row.wake_at - app.wake_at).total_seconds() > 1
    assert row.version == 1, "an automatic change of the wake-up is no version"


async def test_a_stopping_relay_gives_up_the_claims_of_what_is_in_flight(rig: Rig) -> None:
    hanging = asyncio.Event()

    async def publish(*_: object, **__: object) -> list[Published]:
        hanging.set()
        await asyncio.Event().wait()
        return []

    real, rig.broker.publish = rig.broker.publish, publish  # type: ignore[method-assign]
    app = await rig.begin("in-flight")
    await hanging.wait()
    await rig.relay.stop()
    rig.broker.publish = real  # type: ignore[method-assign]
    other = Rig(rig.database)
    await other.relay.start()
    await other.outbox_empty(deadline=2)
    assert other.sent("cmd.createGitRepo") == [app.command_id]
    await other.stop()


async def test_history_says_when_each_command_was_sent(rig: Rig) -> None:
    before = rig.database.now()
    app, own = await rig.begin("one"), await rig.begin("own", saga="calm")
    await rig.outbox_empty()
    for one in (app, own):
        (row,) = await rig.history(one)
        assert row.sent_at is not None
        assert before <= row.sent_at <= rig.database.now()
    rig.report(app, "evt.gitRepoCreated")
    await rig.reached(app, "REGISTERING")
    await rig.outbox_empty()
    rows = await rig.history(app)
    assert [row.sent_at is not None for row in rows] == [True, False, True], "the row that gave the command out"
    assert rows[0].sent_at <= (rows[2].sent_at or before)  # type: ignore[operator]


async def test_a_command_that_was_not_confirmed_is_not_said_to_be_sent(rig: Rig) -> None:
    rig.broker.go_down()
    app = await rig.begin("one")
    assert [row.sent_at for row in await rig.history(app)] == [None]
    rig.broker.come_up()
    await rig.outbox_empty()
    assert None not in [row.sent_at for row in await rig.history(app)]


async def test_a_second_copy_leaves_when_the_first_was_sent(rig: Rig) -> None:
    app = await rig.begin("one")
    await rig.outbox_empty()
    first = await rig.history(app)
    command = command_for(APP_PROVISIONING, app)
    assert command is not None
    async with rig.database.begin() as tx:
        await outbox.insert(tx, [row_for(app, command)], claimed_by=None, lease_s=0.0)
    rig.relay.notify()
    await rig.outbox_empty()
    assert len(rig.sent("cmd.createGitRepo")) == 2
    assert await rig.history(app) == first


async def test_a_pause_before_a_command_leaves_is_not_what_has_sent_it(rig: Rig) -> None:
    """After it the command is given out again, with a later version."""
    rig.broker.go_down()
    app = await rig.begin("one")
    for verb in (SagaAction.PAUSE, SagaAction.RESUME):
        await rig.control.act(Action("app", app.id, ActionRequest(verb, "ada", "because")))
    rig.broker.come_up()
    await rig.outbox_empty()
    rows = await rig.history(app)
    assert [row.command_id for row in rows] == [app.command_id] * 3
    assert [row.sent_at is not None for row in rows] == [True, False, False]
