"""Leases: which node may write as the leader, and which may become it, and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import Final

NOBODY: Final = ""
"""The holder of a term that no node ever had."""
RETAKE_DELAY_S: Final = 5.0
"""Seconds after which a node may take again the lease that it gave up, if no other node has the token."""
DEPOSE_DELAY_S: Final = 2.0
"""Seconds that a node's link to the broker must be up before it deposes a leader without: the token comes sooner."""
RESIGNED_DELAY_S: Final = 0.5
"""Seconds after a resignation in which the token finds the successor."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What a leader's write carries: the term that it was made in, and the id of the node that holds it.

    Terms only rise, and each has one holder for ever. A write whose fence is not the newest term's is refused.
    """

    term: int
    holder: str


class LeaderMode(StrEnum):
    """Whether a leader has a link to the broker; stored and shown as `broker` and `alone`."""

    BROKER = "broker"
    BROKERLESS = "alone"


class ElectionReason(StrEnum):
    """Why a new term began."""

    FIRST = "first"
    """There was none before."""
    RESIGNED = "resigned"
    """The former leader has left in good order."""
    LOST = "lost"
    """The broker gave the token of a leader whose lease still ran: its channel is gone."""
    EXPIRED = "expired"
    """The lease had ended."""
    RETAKEN = "retaken"
    """The former leader itself leads again."""
    DEPOSED = "deposed"
    """The former leader had no broker."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease row, as it was at `now`; both by the database's clock.

    `longest` is what can be left of it at most: if more is left, the clock was set back since it was taken.
    """

    term: int
    holder: str
    mode: LeaderMode
    lease_until: datetime
    gained_at: datetime
    resigned_at: datetime | None
    now: datetime
    longest: timedelta = timedelta.max

    @property
    def lapsed(self) -> bool:
        """Whether the holder no longer leads, unless it renews in time."""
        return not timedelta(0) < self.lease_until - self.now <= self.longest

    @property
    def left(self) -> float:
        """Seconds until it lapses; zero or negative after."""
        left = self.lease_until - self.now
        return (left if left <= self.longest else timedelta(0)) / timedelta(seconds=1)

    @property
    def fence(self) -> Fence:
        """The fence of its holder's writes."""
        return Fence(self.term, self.holder)


@dataclass(frozen=True, slots=True)
class Candidacy:
    """A node's candidacy for leadership. `by_token` says that the broker gave it the token.

    `there` is for how many seconds it had been waiting in this membership when it noticed the vacancy, where that is
    known.
    """

    node_id: str
    mode: LeaderMode
    by_token: bool
    there: float | None = None


def election_reason(candidacy: Candidacy, lease: Lease | None) -> ElectionReason | None:
    """Why the candidate may begin the next term over the row as it is now; None if it may not.

    A node with the token always may: the broker gives it away when its holder's channel is gone. A lease that was taken
    meanwhile ends every other claim.
    """
    if lease is None or lease.holder == NOBODY:
        return ElectionReason.FIRST
    if lease.holder == candidacy.node_id:
        return ElectionReason.RETAKEN
    if lease.resigned_at is not None:
        return ElectionReason.RESIGNED if candidacy.by_token or lease.lapsed else None
    if lease.lapsed:
        return ElectionReason.EXPIRED
    if lease.mode is LeaderMode.BROKERLESS and candidacy.mode is LeaderMode.BROKER:
        return ElectionReason.DEPOSED
    return ElectionReason.LOST if candidacy.by_token else None


@dataclass(frozen=True, slots=True)
class WaitingCandidate:
    """A node that waits without a token, times in seconds. `linked` is 0 while it has no broker."""

    node_id: str
    waited: float
    linked: float
    lease: float
    jitter: float
    """From 0 to 1, drawn for each wait: so that not all try at the same moment."""
    single_node: bool = False
    """Whether the broker lives and dies with this process, so that a former leader has lost its link to it."""


def campaign_delay_s(waiting: WaitingCandidate, lease: Lease | None) -> float:
    """Seconds until the node may campaign without a token, if the row stays as it is."""
    if lease is None or lease.holder == NOBODY or (waiting.single_node and lease.holder != waiting.node_id):
        return max(waiting.jitter * RESIGNED_DELAY_S, _unlinked(waiting)) - waiting.waited
    if lease.holder == waiting.node_id:
        return RETAKE_DELAY_S * (1 + waiting.jitter / 5) - waiting.waited
    by_time = lease.left + _slack(waiting, lease)
    if lease.mode is LeaderMode.BROKERLESS and waiting.linked > 0:
        return min(by_time, DEPOSE_DELAY_S + waiting.jitter - waiting.linked)
    return by_time


def _unlinked(waiting: WaitingCandidate) -> float:
    """A node that has only just started may have no broker yet, and would lead alone for a moment."""
    return DEPOSE_DELAY_S if waiting.linked <= 0 else 0.0


def _slack(waiting: WaitingCandidate, lease: Lease) -> float:
    if lease.resigned_at is not None:
        return RESIGNED_DELAY_S * (1 + waiting.jitter)
    return waiting.lease * (0.02 + 0.08 * waiting.jitter)


@dataclass(frozen=True, slots=True)
class LeaderToken:
    """A message of the leader's queue."""

    term: int
    node_id: str


INITIAL_TOKEN: Final = LeaderToken(0, NOBODY)
"""The token that any node may publish where there is no leader. Every leader's is newer."""


class TokenHandling(Enum):
    """What a node does with a token."""

    KEEP = "keep"
    DROP = "drop"
    CAMPAIGN = "campaign"


def handling(token: LeaderToken, leading: Fence | None) -> TokenHandling:
    """What a node does with a token; `leading` is the fence of a leader in office.

    Its own is kept, or it would elect itself for ever. An older one is a copy. A newer one says that the node leads no
    more.
    """
    if leading is None:
        return TokenHandling.CAMPAIGN
    if token == LeaderToken(leading.term, leading.holder):
        return TokenHandling.KEEP
    return TokenHandling.DROP if token.term < leading.term else TokenHandling.CAMPAIGN
