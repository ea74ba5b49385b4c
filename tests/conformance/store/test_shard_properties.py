"""Are generations a legal chain of even, complete and disjoint shares, however the nodes' transactions interleave?"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.state import ShardRules
from orchestrix.persistence.engine import Database
from tests.conformance.store.shard_interleaving import Interleaving


@pytest.mark.parametrize("allocation", list(Allocation))
@pytest.mark.req(
    *("S1-27", "S1-31", "S4-4", "S4-9", "S4-10", "S4-11", "S4-12", "S4-18", "S4-36", "S4-41", "S4-42", "S4-43")
)
async def test_any_interleaving_of_nodes_makes_a_legal_chain(
    database: Database, peer: Database, allocation: Allocation, scale: Callable[[int, int], int]
) -> None:
    rules = ShardRules(allocation=allocation, window_s=2.0, heartbeat_timeout_s=20.0)
    made = Interleaving([database, peer], rules, Random(f"{allocation}"), database.now())
    await made.run(scale(60, 600))
    assert made.counts["activations"] >= 5, made.counts
