"""Shard diagnosis: which shards wait for whom, and in which words that is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrix.domain.shards.generations import Generation
from orchestrix.domain.shards.members import AwayReason, Revocation, ServiceMember, believed_seen
from orchestrix.domain.shards.ranges import Range, ShardRanges
from orchestrix.domain.shards.state import ShardRules, ShardService

LATE_S: Final = 30.0
"""Seconds after which a member that still has a shard needs attention; a plain one may never let go of it."""
LEAD_S: Final = 5.0
"""Seconds after the end of a window from which it is said that no node activates the generation."""
MOST_SENTENCES: Final = 20
"""Sentences of one kind about a service at most; the rest are counted."""

Absences = Mapping[str, datetime]
"""Since when workers cannot have shards: those that are away, and those that are gone."""


@dataclass(frozen=True, slots=True)
class UnreleasedShards:
    """Shards that a member still has and that are another's share; `late` for longer than members need for that."""

    worker_id: str
    plain: bool
    shards: ShardRanges
    since: datetime
    late: bool

    @property
    def unrevocable(self) -> bool:
        """Whether it is a client that does not follow assignments: only its end frees them."""
        return self.plain and self.late

    def sentence(self) -> str:
        """Why they are not granted to those whose share they are, and what can be done."""
        many, since = _many(self.shards), _at(self.since)
        if self.unrevocable:
            return (
                f"{self.worker_id} does not follow assignments and still reports {many} since {since}: "
                "restart it, or set ORCHESTRIX_SHARDS__PLAIN=push to grant them to others meanwhile"
            )
        if self.late:
            return (
                f"{self.worker_id} has not let go of {many} since {since}: see its log for what does not end, or "
                "restart it"
            )
        return f"{self.worker_id} is to let go of {many} since {since}, and others wait for them"


def unreleased_by(worker_id: str, plain: bool, revoking: Iterable[Revocation], now: datetime) -> list[UnreleasedShards]:
    """What that member has still to let go of."""
    limit = timedelta(seconds=LATE_S)
    return [UnreleasedShards(worker_id, plain, one.shards, one.since, now - one.since >= limit) for one in revoking]


def unreleased(service: ShardService, now: datetime) -> Iterator[UnreleasedShards]:
    """What members still have that is no longer their share, by worker id."""
    for worker, member in sorted(service.members.items()):
        yield from unreleased_by(worker, member.plain, member.revoking, now)


@dataclass(frozen=True, slots=True)
class UnownedShards:
    """Shards that no member has; `since` when the first of them has had none."""

    shards: ShardRanges
    since: datetime


def unowned(
    free: ShardRanges, active: Generation | None, pending: Generation | None, absences: Absences
) -> UnownedShards | None:
    """The free shards with their time; None where there are none, or nothing is known of their time.

    Before the first generation is active, `free` are all shards of the service.
    """
    if not free:
        return None
    if active is None:
        return UnownedShards(free, pending.began_at) if pending is not None else None
    times = [since for _, _, since in _free_parts(free, active, absences)]
    return UnownedShards(free, min(times))


def unowned_in(service: ShardService) -> UnownedShards | None:
    """The shards of the service that no member has."""
    free = service.free if service.active is not None else ShardRanges.up_to(service.shard_count)
    return unowned(free, service.active, service.pending, absences_in(service))


def absences_in(service: ShardService) -> Absences:
    """Since when workers of the service cannot have shards; also of some who are members again, and have theirs."""
    found: dict[str, datetime] = {}
    for gone in service.departures.values():
        found[gone.worker_id] = max(gone.at, found.get(gone.worker_id, gone.at))
    away = {one.worker_id: one.away_at for one in service.members.values() if one.away_at is not None}
    return {**found, **away}


def _free_parts(
    free: ShardRanges, active: Generation, absences: Absences
) -> Iterator[tuple[str | None, ShardRanges, datetime]]:
    """The free shards by whose share they are, or by None what is in no share, and since when they are free."""
    owned: dict[str, list[Range]] = defaultdict(list)
    for one in free.ranges:
        for part, owner in active.owners(one):
            owned[owner].append(part)
    nobodys = free - ShardRanges.of(one for parts in owned.values() for one in parts)
    activated_at = active.activated_at or active.began_at
    for owner, parts in sorted(owned.items()):
        yield owner, ShardRanges.of(parts), absences.get(owner, activated_at)
    if nobodys:  # they lost their members before this generation began
        yield None, nobodys, active.began_at


def explain(service: ShardService, now: datetime, rules: ShardRules) -> list[str]:
    """What keeps shards of the service from the members whose share they are, the most general first; and that none of
    them sends heartbeats. `rules` are those of the nodes.
    """
    waiting = [
        f"a second process runs as {worker} and gets nothing until the first one ends: stop one of them, or give it "
        "another workerId"
        for worker in sorted(service.successors)
    ]
    return [
        *_about_silence(service, now, rules),
        *_about_pending(service, now),
        *_limited(_about_unowned(service)),
        *_limited([one.sentence() for one in unreleased(service, now)]),
        *_limited(waiting),
    ]


def _about_silence(service: ShardService, now: datetime, rules: ShardRules) -> Iterator[str]:
    """That all members are silent for longer than their lease: what they have is theirs, but they work on nothing."""
    present = [one for one in service.members.values() if one.away is None]
    if not present:
        return
    silent_s = (now - max(believed_seen(one.last_seen, now) for one in present)).total_seconds()
    if silent_s <= rules.lease_s:
        return
    leased = any(not one.plain for one in present)
    stopped = f"members stop their work when their lease is over ({rules.lease_s:g} s), and " if leased else "members "
    reach = "nodes and members reach the broker" if leased else "members reach a node"
    yield (
        f"no member's heartbeat has arrived for {silent_s:.0f} s: {stopped}become inactive only when a node has "
        f"listened for {rules.heartbeat_timeout_s:g} s without one of theirs; check that {reach}"
    )


def _about_pending(service: ShardService, now: datetime) -> Iterator[str]:
    pending = service.pending
    if pending is None:
        return
    late = now - pending.closes_at >= timedelta(seconds=LEAD_S)
    if not late:
        yield f"generation {pending.number} is pending: members may join it until {_at(pending.closes_at)}"
    elif pending.leader_id is None:
        yield (
            f"generation {pending.number} is pending since {_at(pending.began_at)} and no node leads it: "
            "start a node with the role coordinator (`orchestrix serve`)"
        )
    else:
        yield (
            f"generation {pending.number} is pending since {_at(pending.began_at)}: its leader {pending.leader_id} has "
            "not activated it; another node begins the next one"
        )


def _about_unowned(service: ShardService) -> list[str]:
    active = service.active
    if active is None:
        return []
    said = []
    for owner, shards, since in _free_parts(service.free, active, absences_in(service)):
        many, verb = _many(shards), "have" if shards.size != 1 else "has"
        member = service.members.get(owner) if owner is not None else None
        if owner is None:
            why = _without_share(service)
        elif member is not None and member.away is not None:
            why = _about_away(member, member.away)
        else:
            why = f"{owner} is gone; the next generation gives them to others"
        said.append(f"{many} {verb} no member since {_at(since)}: {why}")
    return said


def _without_share(service: ShardService) -> str:
    if not service.members:
        return "the service has no members: start one"
    return "no member takes shards, for all have the weight 0: start one, or let one stay"


def _about_away(member: ServiceMember, reason: AwayReason) -> str:
    left = "has left" if reason is AwayReason.LEFT else "is silent"
    until = (member.away_at or member.last_seen) + timedelta(seconds=member.grace_s)
    return f"{member.worker_id} {left}, and its share waits for its return until {_at(until)} (grace)"


def _limited(sentences: list[str]) -> list[str]:
    more = len(sentences) - MOST_SENTENCES
    return sentences if more <= 0 else [*sentences[:MOST_SENTENCES], f"and {more} more like the one before"]


def _many(shards: ShardRanges) -> str:
    return f"{shards.size:,} shards" if shards.size != 1 else "1 shard"


def _at(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
