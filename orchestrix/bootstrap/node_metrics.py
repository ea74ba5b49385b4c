"""Node metrics: what a node shows of itself while it works, by what its parts know anyway."""

from __future__ import annotations

from collections.abc import Callable

from orchestrix.cluster.rejoining_member import RejoiningMember
from orchestrix.telemetry.metrics.catalogue import INFO, IS_LEADER, JOBS_OWNED, LEASE_REMAINING
from orchestrix.telemetry.metrics.instruments import Values, gauge
from orchestrix.version import VERSION


class NodeMetrics:
    """Shows what a node is; of one with the role coordinator also whether it leads, and how many jobs it owns."""

    def __init__(self, roles: frozenset[str], coordinator: RejoiningMember | None) -> None:
        self._roles = ",".join(sorted(roles))
        self._coordinator = coordinator
        self._ends: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Begins."""
        self._ends = [gauge(INFO).watch(lambda: {(self._roles, VERSION): 1})]
        if (coordinator := self._coordinator) is not None:
            self._ends += [
                gauge(IS_LEADER).watch(lambda: {(): int(coordinator.fence is not None)}),
                gauge(LEASE_REMAINING).watch(lambda: _lease(coordinator)),
                gauge(JOBS_OWNED).watch(lambda: _owned(coordinator)),
            ]

    async def stop(self) -> None:
        """Ends."""
        while self._ends:
            self._ends.pop()()


def _lease(coordinator: RejoiningMember) -> Values:
    left = coordinator.member.leadership.lease_remaining_s
    return {} if left is None else {(): left}


def _owned(coordinator: RejoiningMember) -> Values:
    work = coordinator.member.work
    return {} if work is None else {(): work.count}
