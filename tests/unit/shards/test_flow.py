"""Do members and nodes follow the flows of the two source documents, and at the times that these name?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrix.domain.shards import messages
from orchestrix.worker.shards.rabbitmq import MemberTransport
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


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of all messages that members send."""
    found: list[str] = []
    send = MemberTransport.send

    async def noted(self: MemberTransport, kind: str, body: bytes, *rest: object, **more: object) -> bool:
        found.append(kind)
        return await send(self, kind, body, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(MemberTransport, "send", noted)
    return found


@pytest.mark.req("S1-39")
async def test_a_member_registers_and_sends_heartbeats_once_it_is_answered(scene: SdkScene, sent: list[str]) -> None:
    member = scene.member("w-1")
    await member.__aenter__()
    await asyncio.sleep(12)
    assert set(sent) == {messages.REGISTER}, "no node has answered"
    await scene.node("n-1")
    assert await member.wait_until(lambda one: len(one.shards) == 10, timeout=30)
    registered = len(sent)
    await asyncio.sleep(30)
    assert set(sent[registered:]) == {messages.HEARTBEAT}


@pytest.mark.req("S1-33")
async def test_a_member_sends_a_heartbeat_each_five_seconds(scene: SdkScene, sent: list[str]) -> None:
    await scene.node("n-1")
    await scene.enter("w-1")
    await eventually(scene.all_owned, deadline=30.0, every=0.1)
    await asyncio.sleep(10)
    sent.clear()
    await asyncio.sleep(100)
    assert 20 <= len(sent) <= 25, "five seconds, or up to a fifth less"


@pytest.mark.req("S1-14", "S1-34")
@pytest.mark.parametrize("check_s", [1.0, 7.0])
async def test_silence_is_looked_for_at_the_interval_of_the_setting(scene: SdkScene, check_s: float) -> None:
    scene.check_s = check_s
    await scene.node("n-1")
    member = await scene.join("w-1")
    await eventually(scene.all_run, deadline=30.0, every=0.1)
    await asyncio.sleep(40)
    since = (await scene.stored()).state.members["w-1"].last_seen
    await member.crash()

    async def is_gone() -> bool:
        return not (await scene.stored()).state.members

    await eventually(is_gone, deadline=60.0, every=0.1)
    found = (await scene.history())[0]
    assert found.cause == "inactive"
    late = (found.began_at - since).total_seconds() - scene.rules.heartbeat_timeout_s
    assert 0.0 <= late <= check_s + 4.2, (
        "the time until the next look, which comes with a poll, after its last heartbeat"
    )
    looks = scene.nodes["n-1"]._checked_at
    await asyncio.sleep(3 * check_s)
    assert (scene.nodes["n-1"]._checked_at - looks) == pytest.approx(3 * check_s, abs=check_s + 1.0)


@pytest.mark.req("S4-8", "S4-22")
async def test_nodes_that_do_not_lead_a_generation_learn_of_it_by_polling(scene: SdkScene) -> None:
    """The other node gets no message of a member and is told nothing."""
    await scene.node("n-1")
    await scene.node("n-2")
    await scene.nodes["n-2"]._transport.stop()
    await scene.join("w-1")
    await eventually(scene.all_run, deadline=30.0, every=0.1)

    def known(node: str) -> int:
        found = scene.nodes[node]._memory.get(SERVICE)
        return found.state.active.number if found is not None and found.state.active is not None else 0

    await eventually(lambda: known("n-2") == 1, deadline=3.0, every=0.1)
    await scene.join("w-2")
    await eventually(lambda: scene.held() == {"w-1": [0, 1, 2, 3, 4], "w-2": [5, 6, 7, 8, 9]}, deadline=30.0, every=0.1)
    await eventually(lambda: known("n-2") == 2, deadline=3.0, every=0.1)
