"""Hand-off: what a node that hands a job off does next, while it waits for the node that takes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

LATE_ANSWER_LIMIT_S: Final = 30.0
"""Seconds for which an answer still counts that comes after all has been tried."""

SHUTDOWN: Final = "Shutdown"
NODE_CRASH: Final = "NodeCrash"
REBALANCE: Final = "Rebalance"


@dataclass(frozen=True, slots=True)
class HandoffLimits:
    """`ack` seconds are waited for an answer to each of `tries` offers; after `hard` seconds all is over."""

    ack: float = 5.0
    tries: int = 3
    hard: float = 60.0

    @property
    def all_tried(self) -> float:
        """Seconds after which no answer is expected any more."""
        return self.ack * self.tries


class HandoffStep(Enum):
    """What to do."""

    WAIT = "wait"
    PUBLISH = "publish"
    """Offer it, for the first time or again."""
    REMOVED = "removed"
    """Another node owns it: remove it."""
    ORPHAN_PENDING = "orphan pending"
    """Mark it so that the leader finds a new owner, and continue with the next."""
    FORCE_SHUTDOWN = "force shutdown"
    """Leave it as it is and end."""


@dataclass(frozen=True, slots=True)
class HandoffProgress:
    """The state of one job's hand-off. `offers` is how often it was offered; `marked` whether as ORPHAN_PENDING."""

    offers: int = 0
    acked: bool = False
    marked: bool = False


def next_step(offer: HandoffProgress, elapsed: float, limits: HandoffLimits) -> HandoffStep:
    """The four cases, for a job whose hand-off began `elapsed` seconds ago.

    A: answered within `ack`. B: not answered, offered again. C: not answered at all, marked; an answer still counts for
    a while. D: the hard limit.
    """
    if offer.acked:
        return HandoffStep.REMOVED
    if elapsed >= limits.hard or (offer.marked and elapsed >= limits.all_tried + LATE_ANSWER_LIMIT_S):
        return HandoffStep.FORCE_SHUTDOWN
    if offer.marked:
        return HandoffStep.WAIT
    if elapsed >= limits.all_tried:
        return HandoffStep.ORPHAN_PENDING
    return (
        HandoffStep.PUBLISH
        if offer.offers < limits.tries and elapsed >= offer.offers * limits.ack
        else HandoffStep.WAIT
    )


def next_check(offer: HandoffProgress, limits: HandoffLimits) -> float:
    """Seconds after the beginning at which, without an answer, the next step is due."""
    if offer.marked:
        return min(limits.hard, limits.all_tried + LATE_ANSWER_LIMIT_S)
    return min(limits.hard, limits.all_tried, offer.offers * limits.ack)
