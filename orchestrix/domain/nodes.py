"""Nodes: which nodes are alive, by their heartbeats and queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from orchestrix.domain.stored_times import age_s


class NodeState(StrEnum):
    """The state in a node's row."""

    ALIVE = "ALIVE"
    DRAINING = "DRAINING"
    DEAD = "DEAD"
    LEFT = "LEFT"


GROUP_JOBS: Final = 1
"""The feature level from which on a node can judge jobs that are for a group of executors and have no queue."""
FEATURE_LEVEL: Final = GROUP_JOBS
"""The feature level of this version. A node that does not say one has 0."""

LIVE = (NodeState.ALIVE, NodeState.DRAINING)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A row of `nodes`. Times are the database's. A node of a former release gives neither host nor version."""

    id: str
    name: str
    state: NodeState
    roles: tuple[str, ...]
    job_count: int
    started_at: datetime
    beat_at: datetime
    ended_at: datetime | None
    host: str | None = None
    version: str | None = None


def is_silent(node: NodeRow, *, now: datetime, since: datetime, limit: float) -> bool:
    """Whether the node has had no heartbeat for `limit` seconds.

    Silence counts from `since` at the earliest: before that, the caller was not listening. A heartbeat in the future
    was written before the clock was set back, and does not count.
    """
    return min(age_s(node.beat_at, now), age_s(since, now)) >= limit


@dataclass(frozen=True, slots=True)
class _Missed:
    at: float
    beat_at: datetime


class MissingNodes:
    """Which node is missing, by its presence queue: twice, `min_interval_s` seconds apart, with no heartbeat
    between.
    """

    def __init__(self, min_interval_s: float) -> None:
        self._min_interval_s = min_interval_s
        self._missed: dict[str, _Missed] = {}

    def observe(self, at: float, missing: Mapping[str, datetime]) -> str | None:
        """The node that has certainly ended, if any.

        `missing` are the last heartbeats of all nodes whose queue does not exist at `at` (monotonic). Where several are
        missing it is the broker rather than they, and the count begins again.
        """
        if len(missing) != 1:
            self._missed.clear()
            return None
        ((node_id, beat_at),) = missing.items()
        before = self._missed.get(node_id)
        if before is None or before.beat_at != beat_at:
            self._missed = {node_id: _Missed(at, beat_at)}
            return None
        return node_id if at - before.at >= self._min_interval_s else None
