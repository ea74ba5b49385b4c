"""Redelivery policy: decides which of the commands whose workers died are tried next."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Final

TRUSTED_AFTER_S: Final = 2.0
"""Seconds of work after which a command does not look like one that kills its worker at once."""
MAX_ROUNDS: Final = 2


class RedeliveryDecision(Enum):
    """What is done with a suspect command that has arrived."""

    RUN = "run"
    """It is executed now."""
    ASIDE = "aside"
    """It goes to the end of its queue, other commands come first."""
    FULL = "full"
    """The same, but nothing else is left in the queue: the queue is not read again before there is capacity."""


class RedeliveryPolicy:
    """The suspect commands of one queue in one process: pure, `now` is of any monotonic clock.

    A crash costs only the suspects that run at once. So `width` starts at 1, and doubles with each suspect that ends or
    has run for two seconds; waiting for a slot does not count. While all slots are taken at most one waits for the
    next, and only if it has arrived twice: else the commands in the slots would starve it. Those with fewer worker
    deaths come first: one that has more than another which waits is set aside. Of the waiting ones it knows those that
    it has set aside itself. Other workers may have taken them since, so one that has arrived twice while none started
    is not delayed any more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._width = 1
        self._running: dict[str, float | None] = {}
        """When the work started; None before that."""
        self._trusted: set[str] = set()
        self._waiting: dict[str, int] = {}
        self._passed: Counter[str] = Counter()

    @property
    def width(self) -> int:
        """How many may run at once."""
        return self._width

    @property
    def full(self) -> bool:
        """Whether none may start."""
        return len(self._running) >= self._width

    def room(self, free: bool) -> bool:
        """Whether one may start, or wait for a slot if none is `free`."""
        return not self.full and (free or None not in self._running.values())

    def arrives(self, id: str, deaths: int, others: bool, free: bool) -> RedeliveryDecision:
        """What is done with one that has arrived; `others` says whether its queue has more messages, `free` whether a
        slot is free. It is noted."""
        known = self.knows_round(id)
        self._waiting.pop(id, None)
        fewest = min(self._waiting.values(), default=deaths)
        room, passed = self.room(free), self._passed[id] >= MAX_ROUNDS
        if passed:
            self._waiting.clear()
            fewest = deaths
        if room and (free or passed) and fewest >= deaths and (known or not others):
            self._running[id] = None
            self._passed.clear()
            return RedeliveryDecision.RUN
        self._waiting[id] = deaths
        self._passed[id] += 1
        return RedeliveryDecision.FULL if known and not room else RedeliveryDecision.ASIDE

    def knows_round(self, id: str) -> bool:
        """Whether it was set aside here, and arrives again: then the queue need not be counted."""
        return id in self._waiting

    def works(self, id: str, begun: float | None) -> None:
        """Notes since when it runs."""
        if id in self._running:
            self._running[id] = begun

    def leaves(self, id: str) -> None:
        """Notes that it has ended, in whichever way."""
        if id in self._running and id not in self._trusted:
            self._widen()
        self._running.pop(id, None)
        self._trusted.discard(id)

    def watch(self, now: float) -> bool:
        """Checks which have run for long enough; whether `width` has grown."""
        long = {id for id, since in self._running.items() if since is not None and now - since >= TRUSTED_AFTER_S}
        for _ in long - self._trusted:
            self._widen()
        wider = bool(long - self._trusted)
        self._trusted |= long
        return wider

    def _widen(self) -> None:
        self._width = min(self._limit, self._width * 2)
