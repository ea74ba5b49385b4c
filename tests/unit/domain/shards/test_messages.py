"""Are S1's messages read and written as they stand, with the additions of the SDK, and is all else refused clearly?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.shards import messages
from orchestrix.domain.shards.grants import Grant, Grants, shards_of
from orchestrix.domain.shards.messages import MOST_BYTES, MemberMessage
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import Assignment, MemberHeartbeat, MemberLeave, MemberRegistration
from orchestrix.saga.messages import UnreadableMessage

WHO: dict[str, Any] = {"serviceName": "my-service", "workerId": "worker-1"}
PLAIN = {**WHO, "maxShardCount": 100}
SDK = {**PLAIN, "instance": "i-1", "seq": 3}


def body(type: object, **data: Any) -> bytes:
    return json.dumps({"type": type, "data": data}).encode()


def refused(sent: bytes) -> str:
    with pytest.raises(UnreadableMessage) as error:
        messages.read(sent, None)
    return str(error.value)


@pytest.mark.req("S1-15", "S1-43")
def test_the_registration_of_the_specification() -> None:
    expected = MemberRegistration(worker_id="worker-1", instance=None, shard_count=100, reply_to="queue")
    assert messages.read(body("register", **PLAIN), "queue") == MemberMessage("my-service", expected)


@pytest.mark.req("S1-17", "S1-43")
def test_the_heartbeat_of_the_specification() -> None:
    sent = body("heartbeat", **PLAIN, assignedShards=[2, 0, 1, 7])
    shards = ShardRanges(((0, 2), (7, 7)))
    expected = MemberHeartbeat(worker_id="worker-1", instance=None, shard_count=100, shards=shards)
    assert messages.read(sent, None) == MemberMessage("my-service", expected)


@pytest.mark.req("S1-16", "S1-43")
def test_the_assignment_of_the_specification() -> None:
    sent = Assignment("worker-1", None, None, 4, 0, (Grant(0, 2, 8), Grant(5, 5, 9)))
    assert json.loads(messages.assignment(sent)) == {"type": "assignment", "data": {"assignedShards": [0, 1, 2, 5]}}


def test_what_the_sdk_adds() -> None:
    sent = body("heartbeat", **SDK, generation=5, assignedShards=[[0, 3], 7], epochs=[2, 9], weight=0, graceMs=2500)
    heartbeat = messages.read(sent, "queue").event
    assert heartbeat == MemberHeartbeat(
        worker_id="worker-1",
        instance="i-1",
        shard_count=100,
        shards=ShardRanges(((0, 3), (7, 7))),
        seq=3,
        generation=5,
        weight=0,
        grace_s=2.5,
        reply_to="queue",
    )
    assert messages.read(body("register", **SDK, weight=7, graceMs=1000), None).event == MemberRegistration(
        worker_id="worker-1", instance="i-1", shard_count=100, seq=3, weight=7, grace_s=1.0
    )
    assert messages.read(body("leave", **WHO, instance="i-1"), None).event == MemberLeave("worker-1", "i-1")
    assert messages.read(body("leave", **WHO), None).event == MemberLeave("worker-1", None)


def test_an_assignment_for_the_sdk_has_an_epoch_for_each_shard() -> None:
    sent = Assignment("worker-1", "i-1", None, 4, 17, (Grant(0, 1, 8), Grant(5, 5, 9)))
    assert json.loads(messages.assignment(sent))["data"] == {
        "generation": 4,
        "instance": "i-1",
        "seq": 17,
        "assignedShards": [0, 1, 5],
        "epochs": [8, 8, 9],
    }


def test_the_timeout_of_a_node_is_in_the_answer_where_it_is_known() -> None:
    sent = Assignment("worker-1", "i-1", None, 4, 17, (Grant(0, 0, 8),), timeout_s=7.5)
    assert json.loads(messages.assignment(sent))["data"]["heartbeatTimeoutMs"] == 7500
    assert messages.read_assignment(messages.assignment(sent), "worker-1") == sent
    plain = Assignment("worker-1", None, None, 4, 0, (), timeout_s=7.5)
    assert json.loads(messages.assignment(plain))["data"] == {"assignedShards": []}


def test_why_a_member_gets_nothing_is_in_the_answer() -> None:
    sent = Assignment("worker-1", None, None, 4, 0, (), problem="the service has too many members")
    data = json.loads(messages.assignment(sent))["data"]
    assert data == {"assignedShards": [], "error": "the service has too many members"}
    assert json.loads(messages.refusal("type: must be one of …"))["data"] == {
        "assignedShards": [],
        "error": "type: must be one of …",
    }


def test_a_number_with_a_fraction_of_zero_is_whole() -> None:
    sent = body("heartbeat", **WHO, maxShardCount=10.0, assignedShards=[1.0, 2.0])
    event = messages.read(sent, None).event
    assert isinstance(event, MemberHeartbeat)
    assert (event.shard_count, event.shards.ranges) == (10, ((1, 2),))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "not-json"),
        (b"[]", "not-an-object"),
        (b'{"type": "register", "type": "leave"}', "not-json"),
        (body("assignment", assignedShards=[]), "type: must be one of register, heartbeat, leave"),
        (body(["register"], **PLAIN), "type: must be one of"),
        (json.dumps({"data": PLAIN}).encode(), "type: must be one of"),
        (json.dumps({"type": "register"}).encode(), "data: is missing"),
        (json.dumps({"type": "register", "data": [PLAIN]}).encode(), "data: write an object"),
        (body("register", **{**PLAIN, "serviceName": ""}), "data.serviceName: must have 1 to 200 code points"),
        (body("register", **{**PLAIN, "workerId": "x" * 201}), "data.workerId: must have 1 to 200 code points"),
        (body("register", **{**PLAIN, "workerId": " x"}), "data.workerId: must not begin or end with white space"),
        (body("register", **{**PLAIN, "workerId": 7}), "data.workerId: write a string"),
        (body("register", **{**PLAIN, "maxShardCount": 0}), "data.maxShardCount: write 1 or more"),
        (body("register", **{**PLAIN, "maxShardCount": 100_001}), "data.maxShardCount: write 100000 or less"),
        (body("register", **{**PLAIN, "maxShardCount": 1.5}), "data.maxShardCount: write a whole number"),
        (body("register", **{**PLAIN, "maxShardCount": "10"}), "data.maxShardCount: write a whole number"),
        (body("register", **{**PLAIN, "maxShardCount": True}), "data.maxShardCount: write a whole number"),
        (body("register", **WHO), "data.maxShardCount: is missing"),
        (body("register", **{**SDK, "seq": None}), "data: seq is missing"),
        (body("register", **{**SDK, "seq": 0}), "data.seq: write 1 or more"),
        (
            body("register", **{**SDK, "instance": "two words"}),
            "data.instance: write 1 to 100 printable ASCII characters without blanks",
        ),
        (body("register", **{**SDK, "instance": ""}), "data.instance: write 1 to 100 printable ASCII characters"),
        (body("register", **{**SDK, "instance": "x" * 101}), "data.instance: write 1 to 100 printable ASCII"),
        (body("register", **SDK, weight=1001), "data.weight: write 1000 or less"),
        (body("register", **SDK, graceMs=-1), "data.graceMs: write 0 or more"),
        (body("heartbeat", **PLAIN), "data.assignedShards: is missing"),
        (body("heartbeat", **PLAIN, assignedShards="all"), "data.assignedShards: write a list"),
        (body("heartbeat", **PLAIN, assignedShards=[-1]), "data.assignedShards.0.0: write 0 or more"),
        (body("heartbeat", **PLAIN, assignedShards=[0, 100_000]), "data.assignedShards.1.0: write less than 100000"),
        (body("heartbeat", **PLAIN, assignedShards=[[3, 1]]), "data.assignedShards.0: the first shard of a range"),
        (body("heartbeat", **PLAIN, assignedShards=[[1]]), "data.assignedShards.0: write a shard, or a range"),
        (
            body("heartbeat", **PLAIN, assignedShards=[[1, 2, 3]]),
            "data.assignedShards.0: write a shard, or a range as [first, last]",
        ),
        (body("heartbeat", **SDK, assignedShards=[]), "data: generation is missing"),
        (body("heartbeat", **SDK, generation=1, assignedShards=[1], epochs=[]), "data: epochs must have one"),
        (body("leave", workerId="worker-1"), "data.serviceName: is missing"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(sent: bytes, words: str) -> None:
    assert refused(sent).startswith(words)


def test_a_huge_message_is_refused_before_it_is_read() -> None:
    sent = body("heartbeat", **PLAIN, assignedShards=list(range(20_000)))
    assert len(sent) > MOST_BYTES
    assert refused(sent).startswith(
        f"too-large: {len(sent)} bytes, at most {MOST_BYTES}: send assignedShards as ranges"
    )


def test_unknown_fields_are_ignored() -> None:
    sent = json.dumps({"type": "register", "data": {**PLAIN, "region": "eu"}, "version": 2}).encode()
    assert messages.read(sent, None) == messages.read(body("register", **PLAIN), None)


def test_all_shards_of_the_largest_service_fit_into_a_message_of_the_sdk() -> None:
    grants = tuple(Grant(first, first + 99, first + 1) for first in range(0, 100_000, 100))
    sent = Assignment("worker-1", "i-1", None, 4, 17, grants)
    written = messages.assignment(sent)
    assert len(written) <= MOST_BYTES
    assert messages.read_assignment(written, "worker-1") == sent
    heartbeat = MemberHeartbeat(
        worker_id="worker-1", instance="i-1", shard_count=100_000, shards=shards_of(grants), seq=1, generation=4
    )
    reported = messages.heartbeat("my-service", heartbeat, grants)
    assert len(reported) <= MOST_BYTES
    assert messages.read(reported, None) == MemberMessage("my-service", heartbeat)


@st.composite
def some_grants(draw: st.DrawFn) -> Grants:
    cuts = sorted(draw(st.sets(st.integers(0, 500), max_size=12)))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    return tuple(Grant(first, last, draw(st.integers(1, 9))) for first, last in pairs)


@given(some_grants(), st.integers(0, 9), st.integers(1, 99))
def test_what_the_sdk_writes_is_read_again(grants: Grants, generation: int, seq: int) -> None:
    sent = Assignment("worker-1", "i-1", None, generation, seq, grants)
    got = messages.read_assignment(messages.assignment(sent), "worker-1")
    assert (got.instance, got.generation, got.seq) == ("i-1", generation, seq)
    assert _epochs(got.grants) == _epochs(grants)
    member: dict[str, Any] = {"worker_id": "worker-1", "instance": "i-1", "shard_count": 600, "seq": seq}
    heartbeat = MemberHeartbeat(**member, shards=shards_of(grants), generation=generation)
    assert messages.read(messages.heartbeat("s", heartbeat, grants), None) == MemberMessage("s", heartbeat)
    registration = MemberRegistration(**member, weight=generation, grace_s=seq / 4)
    assert messages.read(messages.register("s", registration), None) == MemberMessage("s", registration)
    left = MemberLeave("worker-1", "i-1")
    assert messages.read(messages.leave("s", left), None) == MemberMessage("s", left)


def _epochs(grants: Grants) -> dict[int, int]:
    return {shard: one.epoch for one in grants for shard in range(one.first, one.last + 1)}


@pytest.mark.parametrize("shards", [[1, 1], [[0, 5], 3], [3, [0, 5]]])
def test_an_assignment_with_a_shard_twice_is_refused(shards: list[Any]) -> None:
    with pytest.raises(UnreadableMessage, match="has a shard twice"):
        messages.read_assignment(body("assignment", assignedShards=shards), "worker-1")


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_anything_else_is_refused_and_nothing_else_is_raised(sent: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        messages.read(sent, None)
