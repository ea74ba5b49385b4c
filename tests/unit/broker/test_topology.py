"""Is a topology that was written down the same when it is read?"""

from __future__ import annotations

import json

import pytest

from orchestrix.broker.port import Binding, Exchange, Queue, Topology
from orchestrix.broker.topology import (
    SHARD_COORDINATOR,
    SINGLE,
    from_json,
    is_member_queue,
    member_queue,
    member_topology,
    shard_topology,
    to_json,
)

WHOLE = Topology(
    exchanges=(Exchange("told", "topic", {"alternate-exchange": "lost"}),),
    queues=(Queue("ear", SINGLE, unique=True),),
    bindings=(Binding("ear", "told", "#"),),
)


def test_what_was_written_is_read() -> None:
    assert from_json(json.loads(json.dumps(to_json(WHOLE)))) == WHOLE


def test_what_another_version_writes_beside_is_passed_over() -> None:
    stored = json.loads(json.dumps(to_json(WHOLE)))
    stored["of_another_version"] = []
    for kind in ("exchanges", "queues", "bindings"):
        stored[kind][0]["of_another_version"] = True
    assert from_json(stored) == WHOLE


@pytest.mark.parametrize(
    ("reply_to", "accepted"),
    [
        ("orchestrix.shard.member.w-1", True),
        ("orchestrix.shard.member.Team_A.w:1", True),
        ("orchestrix.shard.member." + "a" * 231, True),
        ("orchestrix.shard.member." + "a" * 232, False),
        ("orchestrix.shard.member.", False),
        ("orchestrix.shard.member", False),
        ("orchestrix.shard.members.w-1", False),
        ("orchestrixXshardXmemberXw-1", False),
        ("x.orchestrix.shard.member.w-1", False),
        ("orchestrix.shard.member.w-1\n", False),
        ("orchestrix.shard.member.w 1", False),
        ("orchestrix.shard.member.é", False),
        ("orchestrix.shard.member.*", False),
        ("orchestrix.coordinator.leader", False),
        ("cmd.createGitRepo", False),
        ("amq.rabbitmq.reply-to", False),
        ("", False),
        (None, False),
    ],
)
def test_answers_go_to_queues_of_members_alone(reply_to: str | None, accepted: bool) -> None:
    assert is_member_queue(reply_to) is accepted


def test_the_queue_of_a_member_lives_with_its_connection() -> None:
    (queue,) = member_topology("w-1").queues
    assert queue.name == member_queue("w-1")
    assert queue.exclusive
    assert is_member_queue(member_queue("a" * 200))
    for bad in ("", "w 1", "é", "w\n", ":connection:", "a" * 201):
        with pytest.raises(ValueError, match="no id of a member"):
            member_queue(bad)


def test_what_members_send_has_its_dead_letters() -> None:
    wanted = shard_topology()
    queues = {one.name: dict(one.arguments) for one in wanted.queues}
    assert queues[SHARD_COORDINATOR] == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "orchestrator.dead",
        "x-dead-letter-routing-key": SHARD_COORDINATOR,
    }
    assert queues[f"{SHARD_COORDINATOR}.dead"] == {"x-queue-type": "quorum"}
    assert Binding(f"{SHARD_COORDINATOR}.dead", "orchestrator.dead", SHARD_COORDINATOR) in wanted.bindings
