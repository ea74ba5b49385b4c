"""Job targets: for whom a job is: the workers of a queue, or an executor of a group, by a routing strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

GROUP_TIMEOUT_MS: Final = 3_600_000
"""The time of each attempt of a job for a group that names none: no queue shows that an executor has forgotten it."""


class Strategy(StrEnum):
    """How executors are picked."""

    FIRST = "FIRST"
    LAST = "LAST"
    ROUND_ROBIN = "ROUND_ROBIN"
    RANDOM = "RANDOM"
    CONSISTENT_HASH = "CONSISTENT_HASH"
    FAILOVER = "FAILOVER"
    SHARDING_BROADCAST = "SHARDING_BROADCAST"
    LEAST_LOADED = "LEAST_LOADED"
    WEIGHTED = "WEIGHTED"
    ADDRESS = "ADDRESS"


class BroadcastEnd(StrEnum):
    """When a broadcast has succeeded: with all of its executors, or with the first of them."""

    ALL = "all"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Routing:
    """How the executor of a job is picked: CONSISTENT_HASH by `key`, ADDRESS by `address`; `end` is of a broadcast.

    Without a `key` it is the id of the job's schedule, `{saga}:{id}` of a step, else the job's id.
    """

    strategy: Strategy = Strategy.ROUND_ROBIN
    key: str | None = None
    address: str | None = None
    end: BroadcastEnd | None = None

    def faults(self) -> list[tuple[str, str]]:
        """(field, what is wrong with it): fields that the strategy needs, or that it has no use for."""
        found = []
        if self.strategy is Strategy.ADDRESS and self.address is None:
            found.append(("address", "is required with strategy ADDRESS: the address of the executor"))
        if self.strategy is not Strategy.ADDRESS and self.address is not None:
            found.append(("address", f"has no use with strategy {self.strategy}: leave it out, or write ADDRESS"))
        if self.strategy is not Strategy.SHARDING_BROADCAST and self.end is not None:
            found.append(
                ("end", f"has no use with strategy {self.strategy}: leave it out, or write SHARDING_BROADCAST")
            )
        return found


TARGET_COLUMNS: Final = ("queue", "executor_group", "routing", "routing_key", "routing_address", "broadcast_end")
"""The columns of a job that say for whom it is."""


@dataclass(frozen=True, slots=True)
class JobTarget:
    """The workers of `queue`, or with None the executors of `group`, by `routing`."""

    queue: str | None = None
    group: str | None = None
    routing: Routing | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Self:
        """The target that `columns` describes, whatever else is in them."""
        group = columns.get("executor_group")
        if group is None:
            return cls(columns.get("queue"))
        end = columns.get("broadcast_end")
        routing = Routing(
            Strategy(columns.get("routing") or Strategy.ROUND_ROBIN),
            columns.get("routing_key"),
            columns.get("routing_address"),
            None if end is None else BroadcastEnd(end),
        )
        return cls(group=group, routing=routing)

    def columns(self) -> dict[str, Any]:
        """The columns of a job that say for whom it is."""
        if self.group is None:
            return {"queue": self.queue}
        routing = self.routing or Routing()
        broadcast = routing.strategy is Strategy.SHARDING_BROADCAST
        return {
            "queue": None,
            "executor_group": self.group,
            "routing": routing.strategy.value,
            "routing_key": routing.key,
            "routing_address": routing.address,
            "broadcast_end": (routing.end or BroadcastEnd.ALL).value if broadcast else None,
        }

    def timeout_ms(self, wanted: int | None) -> int | None:
        """The time of each attempt, in milliseconds: an hour for a group where none is named."""
        return GROUP_TIMEOUT_MS if wanted is None and self.group is not None else wanted
