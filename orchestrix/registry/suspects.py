"""Suspects: which of the executors that may be picked have given no answer, as the node sees it that picks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from orchestrix.domain.registry.routing import Candidate
from orchestrix.domain.registry.suspicion import KEPT_PROBES, is_suspect, suspected_by
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.registry import registrations, suspicions


@dataclass(frozen=True, slots=True)
class SuspicionView:
    """Whose suspicions count where a pick is made: those of `node`, if it is one that probes, and confirmed ones.

    A suspicion is repeated every `probe_s` seconds.
    """

    node: str | None = None
    probe_s: float = 30.0


CONFIRMED: Final = SuspicionView()
"""Confirmed suspicions alone count."""


async def marked(
    tx: Transaction, app: str, found: Sequence[Candidate], seen_by: SuspicionView = CONFIRMED
) -> Sequence[Candidate]:
    """The same candidates, with which of them are suspects."""
    all_ = await suspicions.listed(tx, [app])
    if not all_:
        return found
    known = await registrations.among(tx, {one.executor for one in all_})
    after = tx.now() - timedelta(seconds=KEPT_PROBES * seen_by.probe_s)

    def suspect(address: str) -> bool:
        one = known.get((app, address))
        last_seen = None if one is None else one.last_seen
        nodes = suspected_by(all_, (app, address), after=after, last_seen=last_seen)
        return is_suspect(nodes, seen_by.node)

    return [replace(one, suspect=suspect(one.address)) for one in found]
