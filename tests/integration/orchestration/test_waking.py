"""What is sent again when no answer comes, or when the broker has forgotten everything?"""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.orchestration.rig import Rig
from tests.support import eventually


async def test_an_overdue_command_is_sent_again_under_its_id_with_a_doubled_wait(rig: Rig) -> None:
    await rig.wakeups.start()
    saga = await rig.begin("slow", saga="hasty")
    assert saga.wait_ms == 200
    await eventually(lambda: len(rig.sent("cmd.hurry")) >= 3, deadline=10)
    assert set(rig.sent("cmd.hurry")) == {saga.command_id}
    row = await rig.now(saga)
    assert row.wait_ms in (400, 800, 1000)
    assert row.version == 1
    assert len(await rig.history(saga)) == 1
    assert row.state == "HURRYING", "no deadline fails a saga yet"


async def test_a_command_that_was_never_sent_is_not_doubled(rig: Rig) -> None:
    await rig.wakeups.start()
    rig.broker.go_down()
    saga = await rig.begin("unsent", saga="hasty")
    rig.broker.come_up()
    await rig.outbox_empty()
    assert rig.sent("cmd.hurry")[0] == saga.command_id


async def test_a_broker_that_comes_back_empty_gets_what_live_sagas_are_owed(rig: Rig) -> None:
    await rig.incarnation.start()
    live, moved, done = await rig.begin("live"), await rig.begin("moved"), await rig.begin("done")
    for app in (moved, done):
        rig.report(app, "evt.gitRepoCreated")
        await rig.reached(app, "REGISTERING")
    rig.report(await rig.now(done), "evt.appRegistered")
    await rig.reached(done, "COMPLETED")
    await rig.outbox_empty()
    await eventually(lambda: rig.incarnation.trouble() is None, deadline=5)
    first = set(rig.broker.names)
    rig.broker.published.clear()
    rig.broker.forget()
    await eventually(lambda: len(rig.broker.published) == 2, deadline=10)
    await rig.outbox_empty()
    second = await rig.now(moved)
    assert {m.message_id for m in rig.broker.published} == {live.command_id, second.command_id}
    new = {name for name in rig.broker.names if name.startswith("orchestrix.incarnation.")}
    assert new
    assert not new & first


async def test_a_reconnect_to_the_same_broker_sends_nothing_again(rig: Rig) -> None:
    await rig.incarnation.start()
    await rig.begin("quiet")
    await rig.outbox_empty()
    await eventually(lambda: rig.incarnation.trouble() is None, deadline=5)
    rig.broker.published.clear()
    rig.broker.go_down()
    rig.broker.come_up()
    await rig.begin("after")
    await rig.outbox_empty()
    assert [message.correlation_id for message in rig.broker.published] == ["c-after"]


@pytest.mark.parametrize("seen", [1, 2])
async def test_a_waiting_client_is_woken_by_the_commit(rig: Rig, seen: int) -> None:
    app = await rig.begin("watched")
    waiting = asyncio.create_task(rig.watch.changed("app", app.id, seen, timeout=5))
    rig.report(app, "evt.gitRepoCreated")
    await asyncio.wait_for(waiting, 3)
    assert (await rig.now(app)).version == 3


async def test_a_waiting_client_learns_of_other_processes_commits(rig: Rig) -> None:
    app = await rig.begin("elsewhere")
    waiting = asyncio.create_task(rig.watch.changed("app", app.id, 1, timeout=5))
    await rig.listener.stop()
    other = Rig(rig.database)
    await other.start()
    other.report(app, "evt.gitRepoCreated")
    await asyncio.wait_for(waiting, 3)
    await other.stop()


async def test_a_wait_ends_with_its_time(rig: Rig) -> None:
    app = await rig.begin("still")
    begun = asyncio.get_running_loop().time()
    await rig.watch.changed("app", app.id, 1, timeout=0.3)
    assert 0.25 < asyncio.get_running_loop().time() - begun < 2
