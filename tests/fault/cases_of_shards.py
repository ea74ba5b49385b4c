"""Which script brings a coordinator to which crash point of shards?"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tests.fault.crashing import At
from tests.fault.crashing_shards import (
    ShardRig,
    leave_comes_to_a_dying_node,
    lonely_coordinator_dies,
    one_of_two_dies,
)

Script = Callable[[ShardRig, At], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Case:
    """How a node comes to a point, which it passes at least `most` times. A `pair` is two nodes, which do not share a
    database that has one writer.
    """

    script: Script
    most: int = 1
    pair: bool = False

    async def run(self, rig: ShardRig, point: str, turn: int) -> None:
        """One death, and all that follows."""
        await rig.next_round()
        try:
            await self.script(rig, At(point, 1 + turn % self.most))
            await rig.all_well()
        finally:
            await rig.close()


SHARD_CASES: Final[dict[str, Case]] = {
    "shards.change.before_commit": Case(lonely_coordinator_dies, most=2),
    "shards.change.before_commit beside": Case(one_of_two_dies, pair=True),
    "shards.change.before_commit leave": Case(leave_comes_to_a_dying_node),
    "shards.change.after_commit": Case(lonely_coordinator_dies, most=2),
    "shards.change.after_commit beside": Case(one_of_two_dies, pair=True),
    "shards.change.after_commit leave": Case(leave_comes_to_a_dying_node),
    "shards.lead.after_commit": Case(lonely_coordinator_dies),
    "shards.activate.before_commit": Case(lonely_coordinator_dies),
    "shards.activate.after_commit": Case(lonely_coordinator_dies),
    "shards.answers.before_send": Case(lonely_coordinator_dies, most=3),
    "shards.answers.before_send leave": Case(leave_comes_to_a_dying_node),
    "shards.answers.before_send beside": Case(one_of_two_dies, pair=True),
    "shards.heartbeats.after_commit": Case(lonely_coordinator_dies, most=3),
    "shards.heartbeats.after_commit beside": Case(one_of_two_dies, most=3, pair=True),
}
"""By point; where there are several ways to one, with a word behind it."""
