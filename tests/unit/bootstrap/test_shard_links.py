"""How soon does the broker give to others what a frozen coordinator has in hand?"""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrix.bootstrap.context import NodeContext, NodeSignals
from orchestrix.bootstrap.factories import CONNECTION_HEARTBEAT_S
from orchestrix.bootstrap.shards import link_heartbeat_s, shard_rules
from orchestrix.config.settings import load
from orchestrix.saga.catalog import Catalog
from orchestrix.shards.heartbeats import GATHER_S

NONE = cast(Any, None)


def context(timeout_s: float, *, single_process: bool = False) -> NodeContext:
    settings = load({}, shards__heartbeat_timeout=timeout_s)
    return NodeContext("n-1", settings, frozenset(), NONE, NONE, Catalog([]), NodeSignals(), single_process)


@pytest.mark.parametrize("timeout_s", [15.0, 30.0, 45.0, 60.0, 600.0])
def test_a_lease_outlasts_a_frozen_node_and_half_of_itself(timeout_s: float) -> None:
    node = context(timeout_s)
    lease_s = shard_rules(node.settings.shards).lease_s
    longest = 3 * link_heartbeat_s(node)
    assert lease_s / 2 + longest + GATHER_S < lease_s


def test_a_client_of_s1_that_sends_one_every_ten_seconds_is_not_inactive_by_it() -> None:
    """By S1's own times; one that is lost would be too much for it."""
    node = context(15.0)
    assert 10.0 + 3 * link_heartbeat_s(node) + GATHER_S < node.settings.shards.heartbeat_timeout


def test_a_broker_in_the_same_process_is_frozen_too() -> None:
    assert link_heartbeat_s(context(15.0, single_process=True)) == CONNECTION_HEARTBEAT_S
