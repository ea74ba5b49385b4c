"""Was no shard ever held by two members, by what the members themselves have logged?

A process of members writes a line at once when a shard is given to one of them, when its work on a shard is told to
stop and when that has really ended, and when its lease grows. Times are those of CLOCK_BOOTTIME, which all processes of
a machine share and which counts the time in which it is suspended. What a process could not write any more, the test
knows: when it was killed, and when it stood still.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

BEGIN, STOP, END, LEASE, LATE = "begin", "stop", "end", "lease", "late"
FOREVER: Final = float("inf")

Shard = tuple[str, int]
"""A shard of a service."""


def machine_time() -> float:
    """Seconds that all processes of the machine share, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that runs under a worker id."""

    worker: str
    instance: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: `value` is the epoch of a shard that begins, or the end of a lease; leases have shard -1.

    LATE is a step of the work after the end of the lease, which must not be.
    """

    kind: str
    at: float
    service: str
    holder: Holder
    shard: int = -1
    value: float = 0.0

    def line(self) -> str:
        """As it is written."""
        who = f"{self.service} {self.holder.worker} {self.holder.instance}"
        return f"{self.kind} {self.at!r} {who} {self.shard} {self.value!r}\n"

    @classmethod
    def read(cls, line: str) -> Entry:
        """What was written."""
        kind, at, service, worker, instance, shard, value = line.split(" ")
        return cls(kind, float(at), service, Holder(worker, instance), int(shard), float(value))


@dataclass(slots=True)
class Life:
    """What is known of one process of members: its lines, when it was dead for sure, and when it stood still."""

    entries: list[Entry] = field(default_factory=list)
    dead_at: float = FOREVER
    frozen: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Interval:
    """For how long a process held a shard; `end` is FOREVER while it does."""

    shard: Shard
    holder: Holder
    epoch: float
    begin: float
    end: float
    said_end: bool = False
    """Whether the process itself has said that its work on the shard is over."""


def intervals(life: Life, rest: float) -> Iterator[Interval]:
    """All that the process held. `rest` are the seconds after the end of its lease in which a member lets go.

    The end is what the process says of itself; one that was killed ends by that. Of one that stood still until its
    lease was over and the rest too, nothing after that counts: it has not run, and says the end late, or only that the
    work was stopped.
    """
    open_: dict[tuple[Shard, Holder], Entry] = {}
    for one in life.entries:
        key = (one.service, one.shard), one.holder
        if one.kind == BEGIN:
            if (former := open_.get(key)) is not None:
                end = _slept(life, former, one.at, rest)
                assert end < one.at, f"{one} begins although {former} has not ended"
                yield Interval(*key, former.value, former.at, end)
            open_[key] = one
        elif (
            one.kind == END and (begun := open_.pop(key, None)) is not None
        ):  # else the work was stopped before it began
            yield Interval(*key, begun.value, begun.at, min(one.at, _slept(life, begun, one.at, rest)), True)
    for (shard, holder), begun in open_.items():
        yield Interval(shard, holder, begun.value, begun.at, min(life.dead_at, _slept(life, begun, FOREVER, rest)))


def _slept(life: Life, begun: Entry, until: float, rest: float) -> float:
    """When the lease of the holder ended in its sleep, and the time to let go too; FOREVER if it did not."""
    for since, woken in life.frozen:
        if begun.at <= since < until:
            lease = max((one.value for one in life.entries if _is_lease_of(one, begun.holder, since)), default=since)
            if lease + rest <= woken:
                return max(lease + rest, since)
    return FOREVER


def _is_lease_of(one: Entry, holder: Holder, before: float) -> bool:
    return one.kind == LEASE and one.holder == holder and one.at <= before


def faults(found: Iterable[Interval]) -> list[str]:
    """What must not be: two holders of a shard at a time, and an epoch that does not rise from one to the next."""
    wrong: list[str] = []
    for shard, line in sorted(_by_shard(found).items()):
        latest: Interval | None = None
        for one in line:
            if latest is not None and one.holder != latest.holder:
                if one.begin < latest.end:
                    wrong.append(f"two holders of {shard}: {latest} and {one}")
                if one.epoch <= latest.epoch:
                    wrong.append(f"the epoch of {shard} does not rise: {latest} and then {one}")
            if latest is None or one.end >= latest.end:
                latest = one
    return wrong


def holders(found: Iterable[Interval], now: float) -> dict[Shard, list[Holder]]:
    """Who holds each shard now."""
    present: dict[Shard, list[Holder]] = defaultdict(list)
    for one in found:
        if one.begin <= now < one.end:
            present[one.shard].append(one.holder)
    return present


def gaps(found: Iterable[Interval], shards: Iterable[Shard], since: float, now: float) -> dict[Shard, float]:
    """For how many seconds after `since` each shard was not held at most, at a stretch."""
    lines, longest = _by_shard(found), dict[Shard, float]()
    for shard in shards:
        free_since, worst = since, 0.0
        for one in lines.get(shard, []):
            if one.end > free_since:
                worst = max(worst, one.begin - free_since)
                free_since = one.end
        longest[shard] = max(worst, now - free_since) if free_since < now else worst
    return longest


def interruptions(found: Iterable[Interval], since: float, until: float) -> list[Interval]:
    """What processes have said to be over between these times."""
    return [one for one in found if one.said_end and since < one.end <= until]


def _by_shard(found: Iterable[Interval]) -> dict[Shard, Sequence[Interval]]:
    lines: dict[Shard, list[Interval]] = defaultdict(list)
    for one in found:
        lines[one.shard].append(one)
    return {shard: sorted(line, key=lambda one: (one.begin, one.end)) for shard, line in lines.items()}
