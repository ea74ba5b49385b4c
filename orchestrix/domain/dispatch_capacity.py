"""Dispatch capacity: how many jobs of each queue may be dispatched to workers next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final, TypeVar

T = TypeVar("T")

QUEUE_SHARE_DIVISOR: Final = 4
"""A queue may have this part of the capacity for jobs that no worker has begun."""


GROUP_PREFIX: Final = "group:"
"""Before the name of a group of executors, where it stands among queues: none of them has a colon."""


def target_of(queue: str | None, group: str | None) -> str:
    """The name of a job's target: its queue, or its group after `GROUP_PREFIX`."""
    return f"{GROUP_PREFIX}{group}" if queue is None else queue


def group_of(target: str) -> str | None:
    """The group of executors that a target is; None for a queue."""
    return target.removeprefix(GROUP_PREFIX) if target.startswith(GROUP_PREFIX) else None


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """The jobs of a queue that have queues at the broker: those that no worker has begun, and all others."""

    not_started: int = 0
    others: int = 0


def share(open_limit: int) -> int:
    """How many jobs of one queue may be dispatched that no worker has begun."""
    return max(1, open_limit // QUEUE_SHARE_DIVISOR)


@dataclass(frozen=True, slots=True)
class DispatchCapacity:
    """What may be dispatched: so many jobs per queue, and in all so many of served queues, and of unserved ones.

    A job takes capacity once it has begun, or while its queue has workers. Jobs of queues without workers take none of
    it, and have as much for themselves: they keep no job waiting that a worker could take.
    """

    queues: Mapping[str, int]
    served: int
    unserved: int

    @classmethod
    def of(
        cls, due: Iterable[str], open: Mapping[str, OpenJobs], served: Collection[str], open_limit: int
    ) -> DispatchCapacity:
        """For these queues, while so many jobs of each are open."""
        held = sum(one.others + (one.not_started if queue in served else 0) for queue, one in open.items())
        idle = sum(one.not_started for queue, one in open.items() if queue not in served)
        free = {queue: max(0, share(open_limit) - open.get(queue, OpenJobs()).not_started) for queue in due}
        return cls(free, max(0, open_limit - held), max(0, open_limit - idle))


def fair(waiting: Mapping[str, Sequence[T]], room: DispatchCapacity, served: Collection[str], limit: int) -> list[T]:
    """Up to `limit` of those that wait, in turn from each queue, the first ones of each, as far as there are free
    slots.
    """
    left = {True: room.served, False: room.unserved}
    turns = [[(queue, one) for one in found[: room.queues.get(queue, 0)]] for queue, found in waiting.items()]
    chosen: list[T] = []
    for entry in chain.from_iterable(zip_longest(*turns)):
        if len(chosen) == limit:
            break
        if entry is not None and left[entry[0] in served] > 0:
            left[entry[0] in served] -= 1
            chosen.append(entry[1])
    return chosen
