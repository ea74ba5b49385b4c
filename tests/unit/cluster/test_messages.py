"""What do the cluster's messages say, and what is made of those that say nothing?"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from orchestrix.broker.topology import HEARTBEAT, LEADER
from orchestrix.cluster.election_tokens import read_token, token_message
from orchestrix.cluster.heartbeats import heartbeat_message, read_heartbeat
from orchestrix.domain.leases import INITIAL_TOKEN, LeaderToken
from orchestrix.domain.nodes import NodeState

AT = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)


def test_a_token_says_term_and_node() -> None:
    message = token_message(LeaderToken(7, "a-1"))
    assert (message.exchange, message.routing_key) == ("", LEADER)
    assert json.loads(message.body) == {"term": 7, "nodeId": "a-1"}
    assert read_token(message.body) == LeaderToken(7, "a-1")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"term": 1}', b'{"term": "1", "nodeId": "a"}', b'{"term": true, "nodeId": "a"}']
)
def test_what_is_no_token_is_the_oldest_one(body: bytes) -> None:
    assert read_token(body) == INITIAL_TOKEN


@pytest.mark.req("S0-34", "S0-32", "S0-19")
def test_a_heartbeat_says_who_how_much_and_when() -> None:
    message = heartbeat_message("a-1", 50, NodeState.DRAINING, AT)
    assert message.exchange == HEARTBEAT
    assert json.loads(message.body) == {
        "nodeId": "a-1",
        "jobCount": 50,
        "timestamp": "2026-01-31T12:00:00.000005Z",
        "state": "DRAINING",
    }
    found = read_heartbeat(message.body)
    assert found is not None
    assert (found.node_id, found.job_count, found.state) == ("a-1", 50, NodeState.DRAINING)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"nodeId": 1}', b'{"nodeId": "a", "state": "ODD"}', b'{"nodeId":"a","jobCount":"1"}']
)
def test_what_is_no_heartbeat_is_none(body: bytes) -> None:
    assert read_heartbeat(body) is None


def test_a_heartbeat_without_a_state_is_one_of_the_living() -> None:
    found = read_heartbeat(b'{"nodeId": "a-1", "jobCount": 2, "timestamp": "2026-01-31T12:00:00Z"}')
    assert found is not None
    assert found.state is NodeState.ALIVE
