"""Who may write as the leader, and who may become it, and when?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import Final

NOBODY: Final = ""
"""The holder of a term that nobody ever had."""
RETAKE: Final = 5.0
"""Seconds after which a node may take again the lease that it let go of, if nobody else has the token."""
LINKED: Final = 2.0
"""Seconds that a node's link to the broker must be up before it deposes a leader without: the token comes sooner."""
RESIGNED: Final = 0.5
"""Seconds after a resignation in which the token finds the successor."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What a leader's write carries: the term that it was made in, and the id of the node that holds it.

    Terms only rise, and each has one holder for ever. A write whose fence is not the newest term's is refused.
    """

    term: int
    holder: str


class Mode(StrEnum):
    """Whether a leader has a link to the broker."""

    BROKER = "broker"
    ALONE = "alone"


class Reason(StrEnum):
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

    `longest` is what can be left of it at most: the clock was set back since somebody took it for longer.
    """

    term: int
    holder: str
    mode: Mode
    lease_until: datetime
    gained_at: datetime
    resigned_at: datetime | None
    now: datetime
    longest: timedelta = timedelta.max

    @property
    def lapsed(self) -> bool:
        """Whether the holder leads no more, unless it renews in time."""
        return not timedelta(0) < self.lease_until - self.now <= self.longest

    @property
    def left(self) -> float:
        """Seconds until it lapses; zero or negative after."""
        left = self.lease_until - self.now
        return (left if left <= self.longest else timedelta(0)) / timedelta(seconds=1)

    @property
    def fence(self) -> Fence:
        """What a write of its holder carries."""
        return Fence(self.term, self.holder)


@dataclass(frozen=True, slots=True)
class Bid:
    """A node's wish to lead. `by_token` says that the broker gave it the token.

    `there` is for how many seconds it had been waiting in this life when it noticed that nobody leads, where it tells.
    """

    node_id: str
    mode: Mode
    by_token: bool
    there: float | None = None


def ground(bid: Bid, lease: Lease | None) -> Reason | None:
    """Why the bidder may begin the next term over the row as it is now; None if it may not.

    Who has the token always may: the broker gives it away when its holder's channel is gone. A lease that was taken
    meanwhile ends every other claim.
    """
    if lease is None or lease.holder == NOBODY:
        return Reason.FIRST
    if lease.holder == bid.node_id:
        return Reason.RETAKEN
    if lease.resigned_at is not None:
        return Reason.RESIGNED if bid.by_token or lease.lapsed else None
    if lease.lapsed:
        return Reason.EXPIRED
    if lease.mode is Mode.ALONE and bid.mode is Mode.BROKER:
        return Reason.DEPOSED
    return Reason.LOST if bid.by_token else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """How it stands with a node that waits without a token, in seconds. `linked` is 0 while it has no broker."""

    node_id: str
    waited: float
    linked: float
    lease: float
    jitter: float
    """From 0 to 1, drawn anew for each wait: so that not all try at the same moment."""
    sole: bool = False
    """Whether the broker lives and dies with this process, so that a former leader has lost its link to it."""


def patience(waiting: Waiting, lease: Lease | None) -> float:
    """Seconds until the node may campaign without a token, if the row stays as it is."""
    if lease is None or lease.holder == NOBODY or (waiting.sole and lease.holder != waiting.node_id):
        return max(waiting.jitter * RESIGNED, _unlinked(waiting)) - waiting.waited
    if lease.holder == waiting.node_id:
        return RETAKE * (1 + waiting.jitter / 5) - waiting.waited
    by_time = lease.left + _slack(waiting, lease)
    if lease.mode is Mode.ALONE and waiting.linked > 0:
        return min(by_time, LINKED + waiting.jitter - waiting.linked)
    return by_time


def _unlinked(waiting: Waiting) -> float:
    """A node that has only just started may have no broker yet, and would lead alone for a moment."""
    return LINKED if waiting.linked <= 0 else 0.0


def _slack(waiting: Waiting, lease: Lease) -> float:
    if lease.resigned_at is not None:
        return RESIGNED * (1 + waiting.jitter)
    return waiting.lease * (0.02 + 0.08 * waiting.jitter)


@dataclass(frozen=True, slots=True)
class Token:
    """A message of the leader's queue."""

    term: int
    node_id: str


SEED: Final = Token(0, NOBODY)
"""The token that anybody may put into the queue where nobody leads. Every leader's is newer."""


class Handling(Enum):
    """What becomes of a token."""

    HOLD = "hold"
    DROP = "drop"
    CAMPAIGN = "campaign"


def handling(token: Token, leading: Fence | None) -> Handling:
    """What a node does with a token; `leading` is the fence of a leader in office.

    Its own is held, or it would elect itself for ever. An older one is somebody's copy. A newer one says that the node
    leads no more.
    """
    if leading is None:
        return Handling.CAMPAIGN
    if token == Token(leading.term, leading.holder):
        return Handling.HOLD
    return Handling.DROP if token.term < leading.term else Handling.CAMPAIGN
