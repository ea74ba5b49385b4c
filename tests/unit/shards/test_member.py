"""Does a member of the SDK work for what it is given, and stop before another one has it?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrix import clock
from orchestrix.domain.shards.member_session import MOST_STARTS, ShardRun
from orchestrix.domain.shards.state import ShardRules
from orchestrix.worker.shards.link import MemberLink
from orchestrix.worker.shards.member import MemberState
from orchestrix.worker.shards.runs import ShardRuns
from tests.support import eventually
from tests.unit.shards.scene import SERVICE
from tests.unit.shards.sdk import SdkScene

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def scene(tmp_path: Path, template: Path) -> AsyncIterator[SdkScene]:
    made = SdkScene(tmp_path, template)
    yield made
    await made.stop()
    assert made.overlaps() == []


async def settled(scene: SdkScene, count: int = 10, deadline: float = 60.0) -> None:
    await eventually(lambda: scene.all_owned(count), deadline=deadline, every=0.05)


@pytest.mark.req("S4-14", "S4-23")
async def test_members_work_for_their_shares(scene: SdkScene) -> None:
    await scene.node("n-1")
    members = [scene.member(name) for name in ("w-1", "w-2", "w-3")]
    for member in members:
        await member.__aenter__()
        assert member.state is MemberState.JOINING
    await settled(scene, deadline=10.0)
    assert scene.owned() == {"w-1": [0, 1, 2, 3], "w-2": [4, 5, 6], "w-3": [7, 8, 9]}
    assert [member.state for member in members] == [MemberState.ACTIVE] * 3
    assert {(one.shard, one.worker) for one in scene.spans} == {
        (shard, worker) for worker, shards in scene.owned().items() for shard in shards
    }
    assert all(one.epoch == members[0].shards.get(one.shard, one.epoch) for one in scene.spans)


@pytest.mark.req("S4-15", "S4-24", "S4-25")
@pytest.mark.parametrize(("cleanup_s", "revoked_s"), [(2.0, 3.0), (0.3, 0.4), (0.0, 1.5)])
async def test_a_shard_moves_when_its_work_and_its_revocation_have_ended(
    scene: SdkScene, cleanup_s: float, revoked_s: float
) -> None:
    await scene.node("n-1")
    work = scene.work("w-1", cleanup_s=cleanup_s, revoked_s=revoked_s)
    (one,) = await scene.enter("w-1", work=work)
    await settled(scene)
    await scene.enter("w-2")
    await settled(scene)
    assert scene.owned() == {"w-1": [0, 1, 2, 3, 4], "w-2": [5, 6, 7, 8, 9]}
    ends = {one.shard: one.end for one in scene.spans if one.worker == "w-1"}
    starts = {one.shard: one.start for one in scene.spans if one.worker == "w-2"}
    assert all(ends[shard] <= start <= ends[shard] + 0.5 for shard, start in starts.items())
    assert sorted(work.called("revoked")) == [5, 6, 7, 8, 9]
    assert one.revoking == {}


async def test_one_that_leaves_hands_off_while_it_works_and_is_gone(scene: SdkScene) -> None:
    await scene.node("n-1")
    one, _ = await scene.enter("w-1", "w-2")
    await settled(scene)
    await asyncio.sleep(20)
    began = clock.boottime()
    leaving = asyncio.create_task(one.leave())
    await asyncio.sleep(1.0)
    assert (one.state, len(one.shards)) == (MemberState.LEAVING, 5), "the others are not asked to take them yet"
    await leaving
    assert one.state is MemberState.LEFT
    await settled(scene, deadline=5.0)
    assert scene.owned() == {"w-2": list(range(10))}
    assert clock.boottime() - began <= 8.0
    gaps = [
        later.start - former.end
        for former in scene.spans
        for later in scene.spans
        if (former.worker, later.worker) == ("w-1", "w-2") and former.shard == later.shard
    ]
    assert len(gaps) == 5
    assert max(gaps) < 1.5
    members = (await scene.stored()).state.members
    assert set(members) == {"w-2"}


async def test_a_shard_whose_work_hangs_is_shown_and_not_given_away(scene: SdkScene) -> None:
    await scene.node("n-1")
    work = scene.work("w-1", revoked_s=40.0)
    (one,) = await scene.enter("w-1", work=work)
    await settled(scene)
    (two,) = await scene.enter("w-2")
    await asyncio.sleep(30)
    assert set(one.revoking) == {5, 6, 7, 8, 9}
    assert all(25.0 <= since <= 31.0 for since in one.revoking.values())
    assert two.shards == {}
    stored = (await scene.stored()).state.members["w-1"]
    assert stored.revoking[0].shards.size == 5
    await settled(scene)
    assert one.revoking == {}


async def test_without_answers_the_work_ends_at_two_thirds_of_the_timeout(scene: SdkScene) -> None:
    node = await scene.node("n-1")
    work = scene.work("w-1", cleanup_s=1.0, revoked_s=2.0)
    (one,) = await scene.enter("w-1", work=work)
    await settled(scene)
    await asyncio.sleep(30)
    await node.stop()
    lease_until = one._session.lease_until
    await eventually(lambda: not one.shards, deadline=30.0, every=0.01)
    assert clock.boottime() == pytest.approx(lease_until, abs=0.3)
    assert one.state is MemberState.EXPIRED
    await eventually(lambda: all(span.end < float("inf") for span in scene.spans), deadline=10.0, every=0.01)
    assert clock.boottime() == pytest.approx(lease_until + 3.0, abs=0.5)
    await scene.node("n-2")
    await settled(scene)
    assert [one.state] == [MemberState.ACTIVE]


async def test_what_does_not_end_in_time_is_interrupted_before_others_have_the_shard(
    scene: SdkScene, caplog: pytest.LogCaptureFixture
) -> None:
    node = await scene.node("n-1")
    work = scene.work("w-1", revoked_s=60.0)
    (one,) = await scene.enter("w-1", work=work, count=2)
    await settled(scene, 2)
    await node.stop()
    lease_until = one._session.lease_until
    await eventually(lambda: all(span.end < float("inf") for span in scene.spans), deadline=30.0, every=0.01)
    assert clock.boottime() == pytest.approx(lease_until + 5.0, abs=0.5)
    said = "on_revoked was interrupted: others may have the shards by now: shards 0-1"
    await eventually(lambda: said in caplog.text, deadline=1.0)


async def test_nothing_of_one_that_stood_still_runs_on(scene: SdkScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes with steps that are due and answers that are old; its clock says that its lease is over."""
    await scene.node("n-1")
    steps: list[int] = []
    calls: list[int] = []

    async def assigned(shard: int, epoch: int) -> None:
        calls.append(len(calls))
        own = calls[-1]
        while True:
            await asyncio.sleep(0.01)
            steps.append(own)

    work = scene.work("w-1")
    monkeypatch.setattr(work, "assigned", assigned)
    (one,) = await scene.enter("w-1", work=work, count=1)
    await eventually(lambda: len(steps) > 50, deadline=5.0)
    boottime, before = clock.boottime, len(steps)
    monkeypatch.setattr(clock, "boottime", lambda: boottime() + 60.0)
    assert one.shards == {}
    await eventually(lambda: len(calls) == 2 and len(steps) > before, deadline=5.0)
    assert set(steps[before:]) == {1}, "it was given the shard anew: its heartbeats were not missed yet"


async def test_work_that_begins_when_the_lease_ends_is_stopped(
    scene: SdkScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stands still while it begins the work, and nothing answers it after that."""
    await scene.node("n-1")
    boottime, start, begun = clock.boottime, ShardRuns.start, list[ShardRun]()

    def slowly(runs: ShardRuns, run: ShardRun) -> None:
        start(runs, run)
        begun.append(run)
        monkeypatch.setattr(clock, "boottime", lambda: boottime() + 60.0)
        monkeypatch.setattr(MemberLink, "_receive", lambda *_: None)

    monkeypatch.setattr(ShardRuns, "start", slowly)
    one = scene.member("w-1", count=1)
    async with one:
        await eventually(lambda: begun != [], deadline=10.0)
        await eventually(lambda: not one._session.runs, deadline=1.0)
    assert one.shards == {}


async def test_work_that_outlives_a_leave_that_was_cancelled_ends_with_the_lease(
    scene: SdkScene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.node("n-1")
    steps, ended = list[float](), asyncio.Event()

    async def assigned(shard: int, epoch: int) -> None:
        try:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.1)
                    steps.append(clock.boottime())
                if steps[-1] < clock.boottime() - 1:
                    return
        finally:
            ended.set()

    work = scene.work("w-1")
    monkeypatch.setattr(work, "assigned", assigned)
    (one,) = await scene.enter("w-1", work=work, count=1)
    await eventually(lambda: len(steps) > 4, deadline=5.0)
    leave = asyncio.create_task(one.leave())
    await asyncio.sleep(0.05)
    leave.cancel()
    await asyncio.wait([leave])
    lease_until = one._session.lease_until
    monkeypatch.setattr(clock, "boottime", lambda: lease_until + 1.5)
    await eventually(ended.is_set, deadline=5.0)
    assert max(steps) < lease_until
    assert "KeyError" not in caplog.text


async def test_an_error_of_the_work_is_logged_and_it_is_called_again(
    scene: SdkScene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.node("n-1")
    work = scene.work("w-1", fails=[ValueError("no such table"), ValueError("no such table")])
    (one,) = await scene.enter("w-1", work=work, count=1)
    await eventually(lambda: work.called("assigned") == [0, 0, 0], deadline=20.0)
    assert len({epoch for _, _, epoch in work.calls}) == 1
    assert list(one.shards) == [0]
    await eventually(lambda: "failed 1 time more, for shard 0: ValueError: no such table" in caplog.text, deadline=15.0)
    lines = [record for record in caplog.records if "no such table" in record.getMessage()]
    assert [record.exc_info is not None for record in lines] == [True, False]


async def test_the_same_error_for_many_shards_is_two_lines(scene: SdkScene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.node("n-1")
    work = scene.work("w-1", fails=[ValueError(f"row {n}") for n in range(100)])
    await scene.enter("w-1", work=work, count=100)
    await settled(scene, 100)
    await asyncio.sleep(20)
    lines = [record.getMessage() for record in caplog.records if "ValueError" in record.getMessage()]
    assert len(lines) == 2
    assert "on_assigned failed 99 times more, for shards " in lines[1]


async def test_a_revocation_that_fails_is_called_again_and_the_shard_is_not_lost_meanwhile(scene: SdkScene) -> None:
    await scene.node("n-1")
    work = scene.work("w-1", revoked_fails=[OSError("disk"), OSError("disk"), OSError("disk")])
    (one,) = await scene.enter("w-1", work=work, count=2)
    await settled(scene, 2)
    (two,) = await scene.enter("w-2", count=2)
    await eventually(lambda: work.called("revoked") == [1, 1], deadline=10.0, every=0.01)
    assert two.shards == {}
    await settled(scene, 2)
    assert work.called("revoked") == [1, 1, 1, 1]
    assert list(one.shards) == [0]


async def test_a_function_may_begin_something_and_return(scene: SdkScene) -> None:
    await scene.node("n-1")
    work = scene.work("w-1", returns=True)
    (one,) = await scene.enter("w-1", work=work, count=2)
    await settled(scene, 2)
    await asyncio.sleep(60)
    assert sorted(one.shards) == [0, 1]
    assert sorted(work.called("assigned")) == [0, 1]
    await one.leave()
    assert sorted(work.called("revoked")) == [0, 1]


async def test_a_restart_within_the_grace_moves_nothing(scene: SdkScene) -> None:
    await scene.node("n-1")
    (one,) = await scene.enter("w-1", grace=20)
    await scene.enter("w-2", grace=20)
    await settled(scene)
    before, moves = scene.owned(), (await scene.history())[0].number
    await one.leave()
    await asyncio.sleep(8)
    assert scene.owned() == {"w-2": before["w-2"]}
    await scene.enter("w-1", grace=20)
    await settled(scene)
    assert scene.owned() == before
    assert (await scene.history())[0].number == moves


async def test_a_second_process_of_an_id_waits_for_the_end_of_the_first(
    scene: SdkScene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.node("n-1")
    (one,) = await scene.enter("w-1")
    await settled(scene)
    second = scene.member("w-1")
    await second.__aenter__()
    assert not await second.wait_joined(20)
    assert second.problem is not None
    assert "another process runs under this workerId" in second.problem
    assert caplog.text.count("is refused: another process runs under this workerId") == 1
    await one.leave()
    assert await second.wait_joined(20)
    await settled(scene)
    assert second.problem is None


async def test_another_shard_count_is_that_of_the_service(scene: SdkScene) -> None:
    await scene.node("n-1")
    one, two = await scene.enter("w-1", "w-2")
    await settled(scene)
    one.set_shard_count(30)
    await settled(scene, 30, deadline=10.0)
    two.set_shard_count(4)
    await eventually(lambda: scene.owned() == {"w-1": [0, 1], "w-2": [2, 3]}, deadline=10.0, every=0.05)
    one.set_shard_count(30)  # as it said before
    await settled(scene, 30, deadline=10.0)


async def test_thousands_of_shards_begin_in_portions(scene: SdkScene) -> None:
    await scene.node("n-1")
    await scene.enter("w-1", work=scene.work("w-1", returns=True), count=2 * MOST_STARTS + 1)
    await settled(scene, 2 * MOST_STARTS + 1, deadline=1.0)


async def test_members_outlive_the_end_of_a_node_and_of_the_broker(scene: SdkScene) -> None:
    node = await scene.node("n-1")
    await scene.node("n-2")
    await scene.enter("w-1", "w-2")
    await settled(scene)
    began = len(scene.spans)
    await node.stop()
    await asyncio.sleep(30)
    scene.server.stop()
    await asyncio.sleep(2)
    scene.server.start()
    await asyncio.sleep(30)
    await settled(scene)
    assert len(scene.spans) == began, "nobody was interrupted"
    scene.server.stop()
    await asyncio.sleep(40)
    assert scene.owned() == {}
    scene.server.start()
    await settled(scene)


async def test_a_member_whose_work_does_not_end_leaves_without_saying_so(
    scene: SdkScene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.node("n-1")
    work = scene.work("w-1", revoked_s=100.0)
    (one,) = await scene.enter("w-1", work=work, count=2, stop_timeout=5.0)
    await settled(scene, 2)
    began = clock.boottime()
    await one.leave()
    assert clock.boottime() - began < 8.0
    assert "the work for shards 0-1 has not ended within 5 s" in caplog.text
    assert set((await scene.stored()).state.members) == {"w-1"}


async def test_no_leave_is_sent_before_all_work_has_ended(scene: SdkScene) -> None:
    await scene.node("n-1")
    one, two = await scene.enter("w-1", work=scene.work("w-1", revoked_s=6.0)), await scene.enter("w-2")
    await settled(scene)
    await asyncio.gather(one[0].leave(), two[0].leave())
    assert one[0].service == SERVICE
    assert (await scene.stored()).state.members == {}


async def test_a_member_with_a_longer_timeout_than_the_nodes_takes_theirs(
    scene: SdkScene, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would work on when its shards are another's."""
    node = await scene.node("n-1")
    scene.rules = ShardRules(heartbeat_timeout_s=60.0)
    (one,) = await scene.enter("w-1")
    await settled(scene)
    await asyncio.sleep(30)
    await node.stop()
    began = clock.boottime()
    await eventually(lambda: not one.shards, deadline=60.0, every=0.05)
    assert clock.boottime() - began <= 10.5
    assert caplog.text.count("the nodes' heartbeat time-out is 15 s and this member's 60 s") == 1


async def test_members_learn_of_a_shorter_timeout_although_nothing_changes(scene: SdkScene) -> None:
    """The answers to routine heartbeats say it too: nodes were restarted with another setting."""
    node = await scene.node("n-1")
    (one,) = await scene.enter("w-1")
    await settled(scene)
    await asyncio.sleep(20)
    await node.stop()
    scene.rules = ShardRules(heartbeat_timeout_s=12.0)
    scene.check_s = 2.0
    await scene.node("n-2")
    await asyncio.sleep(15)
    assert one._session.rules.heartbeat_timeout_s == 12.0
    assert len(scene.spans) == 10, "nobody was interrupted"


async def test_a_member_that_nobody_answers_says_so_once(scene: SdkScene, caplog: pytest.LogCaptureFixture) -> None:
    member = scene.member("w-1")
    await member.__aenter__()
    await asyncio.sleep(10)
    problems = [member.problem]
    await asyncio.sleep(50)
    problems.append(member.problem)
    assert problems == [None, "no coordinator has answered for 60 s: start a node with the role coordinator"]
    assert caplog.text.count("start a node with the role coordinator") == 1
    await scene.node("n-1")
    await settled(scene)
    assert member.problem is None


@pytest.mark.parametrize("function", ["assigned", "revoked"])
async def test_a_cancellation_of_its_own_is_an_error_of_a_function(scene: SdkScene, function: str) -> None:
    await scene.node("n-1")
    errors: list[Exception] = []
    work = scene.work("w-1", fails=errors) if function == "assigned" else scene.work("w-1", revoked_fails=errors)
    errors.append(asyncio.CancelledError())  # type: ignore[arg-type]
    (one,) = await scene.enter("w-1", work=work, count=2)
    await settled(scene, 2)
    await scene.enter("w-2", count=2)
    await settled(scene, 2)
    await eventually(lambda: len(work.called(function)) == (3 if function == "assigned" else 2), deadline=5.0)
    assert (list(one.shards), errors) == ([0], [])


async def test_a_function_that_ignores_its_cancellation_is_cancelled_again(
    scene: SdkScene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.node("n-1")
    ignored: list[float] = []

    async def assigned(shard: int, epoch: int) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ignored.append(clock.boottime())
                if len(ignored) == 4:
                    return

    work = scene.work("w-1")
    monkeypatch.setattr(work, "assigned", assigned)
    (one,) = await scene.enter("w-1", work=work, count=1)
    await settled(scene, 1)
    one.set_weight(0)
    await eventually(lambda: len(ignored) == 3, deadline=15.0)
    assert list(one.revoking) == [0]
    await eventually(lambda: not one.revoking, deadline=15.0)
    assert "its functions for shard 0 still run 5 s after they were stopped" in caplog.text


async def test_a_member_is_entered_once(scene: SdkScene) -> None:
    member = scene.member("w-1")
    async with member:
        with pytest.raises(RuntimeError, match="entered once"):
            await member.__aenter__()
    assert member.state is MemberState.LEFT


async def test_to_wait_outside_of_the_block_is_an_error_that_says_what_to_do(scene: SdkScene) -> None:
    member = scene.member("w-1")
    said = r"outside of the block: call it within `async with ShardMember\("
    with pytest.raises(RuntimeError, match=rf"^wait_until\(\) waits .*{said}"):
        await member.wait_until(lambda one: False, 1.0)
    for leave in (False, True):
        with pytest.raises(RuntimeError, match=rf"^wait_joined\(\) waits .*{said}"):
            await member.wait_joined(1.0)
        with pytest.raises(RuntimeError, match=rf"^wait_for_stop\(\) waits .*{said}"):
            async with asyncio.timeout(1.0):
                await member.wait_for_stop()
        if not leave:
            async with member:
                assert not await member.wait_joined(0.1)
    assert await member.wait_until(lambda one: one.state is MemberState.LEFT, 1.0)
