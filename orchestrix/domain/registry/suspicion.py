"""Suspicion rules: which node asks an executor whether it is there, and for whom one without an answer counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orchestrix.domain.registry.routing import rendezvous_score

CONFIRMING_NODES: Final = 2
"""Nodes that must suspect an executor for all of them to pass it over: one alone may be cut off itself."""
KEPT_PROBES: Final = 3
"""Probes that a suspicion outlives which its node does not repeat: that node has ended, or cannot say so."""

Executor = tuple[str, str]
"""The app and the address of an executor."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """That `node` got no answer from an executor: first by a probe that began at `since`, last at `probed_at`."""

    app: str
    address: str
    node: str
    since: datetime
    probed_at: datetime

    @property
    def executor(self) -> Executor:
        """The app and the address."""
        return self.app, self.address

    def has_ended(self, *signs: datetime | None) -> bool:
        """Whether one of these signs of life came after the probe began: a heartbeat, a report or an answer."""
        return any(sign is not None and sign > self.since for sign in signs)


def suspected_by(
    suspicions: Iterable[Suspicion], executor: Executor, *, after: datetime, last_seen: datetime | None
) -> dict[str, datetime]:
    """The nodes that suspect the executor, each with since when; `last_seen` is its last heartbeat.

    What a node has not repeated since `after` does not count any more.
    """
    return {
        one.node: one.since
        for one in suspicions
        if one.executor == executor and one.probed_at > after and not one.has_ended(last_seen)
    }


def is_suspect(nodes: Collection[str], node: str | None) -> bool:
    """Whether `node` passes over an executor that these nodes suspect: it is one of them, or there are enough."""
    return node in nodes or len(nodes) >= CONFIRMING_NODES


def probes(
    node: str,
    executor: Executor,
    *,
    owners: Collection[str],
    coordinators: Collection[str],
    suspecting: Collection[str],
) -> bool:
    """Whether `node` is to ask an executor that missed a heartbeat, or that a node suspects.

    `owners` are the nodes that own work of it, of the live `coordinators`: they ask first, and without any, the one
    that rendezvous hashing picks. Who suspects it asks until it answers. One suspicion is confirmed by one more node,
    again of rendezvous hashing: so a few ask, however many nodes there are.
    """
    if node in suspecting or node in owners:
        return True
    if len(suspecting) >= CONFIRMING_NODES or (owners and not suspecting):
        return False
    rest = [one for one in coordinators if one not in suspecting]
    return bool(rest) and _picked(rest, executor) == node


def _picked(nodes: Collection[str], executor: Executor) -> str:
    key = "\0".join(executor)
    return max(nodes, key=lambda one: (rendezvous_score(one, key), one))
