"""Shard checks: shards without a member, members that do not let go, services that are nearly full, and whether nodes
answer members.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from orchestrix.broker.topology import SHARD_COORDINATOR
from orchestrix.cli.doctor.result import WARN, CheckResult
from orchestrix.domain.shards.generations import LEADER_MARGIN_S, CauseKind
from orchestrix.domain.shards.members import MOST_MEMBERS, MOST_SERVICES
from orchestrix.quantities import counted

if TYPE_CHECKING:
    from orchestrix.broker.port import Broker
    from orchestrix.persistence.engine import Database
    from orchestrix.persistence.shards.overview import ServiceOverview

NEARLY_FULL: Final = 0.9
"""The part of the allowed members or services from which on there is a warning."""
ENDED: Final = timedelta(days=1)
"""For so long there is a warning about a service whose last members fell silent: it may be one that is not needed."""
_PAGE: Final = 200
_NODES: Final = 1_000
_SHOWN: Final = 10
"""Findings of a kind; the rest are counted."""
_SERVE: Final = "start a node with the role coordinator: orchestrix serve"


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What the database says at `now`. `heard_at` is the last sign of life of any member, `windows` are the seconds of
    the windows of the generations that began since the last node started.
    """

    now: datetime
    services: Sequence[ServiceOverview] = ()
    heard_at: datetime | None = None
    windows: frozenset[float] = frozenset()

    @property
    def members(self) -> int:
        """How many members there are in all services."""
        return sum(one.members for one in self.services)


async def facts(database: Database) -> ShardFacts:
    """Read for all services at once. Raises `Unavailable`."""
    from orchestrix.persistence.cluster import nodes
    from orchestrix.persistence.shards import overview, workers

    services: list[ServiceOverview] = []
    async with database.read() as connection:
        while page := await overview.page(connection, services[-1].name if services else None, _PAGE):
            services += page
        heard_at = await workers.last_sign_of_life(connection)
        live = await nodes.listed(connection, _NODES)
        now = connection.now()
    started = max((one.started_at for one in live if one.ended_at is None), default=now)
    generations = [one for service in services for one in (service.active, service.pending) if one is not None]
    windows = {(one.closes_at - one.began_at).total_seconds() for one in generations if one.began_at >= started}
    return ShardFacts(now, services, heard_at, frozenset(windows))


async def shards(known: ShardFacts, broker: Broker, timeout_s: float) -> list[CheckResult]:
    """A warning for each thing that needs attention; `timeout_s` is the heartbeat time-out of members."""
    late = known.now - timedelta(seconds=2 * timeout_s)
    found = [
        *await _queue(broker, known),
        *_coordinators(known, late),
        *_limited(_unowned(known, late)),
        *_limited(_unreleased(known, late)),
        *_limited(_full(known)),
    ]
    return [CheckResult(WARN, "shards", detail, fix) for detail, fix in found]


async def _queue(broker: Broker, known: ShardFacts) -> list[tuple[str, str]]:
    """Whether a node reads what members send."""
    count = await broker.message_count(SHARD_COORDINATOR)
    if count is None or count[1] or not (count[0] or known.members):
        return []
    return [
        (f"no node reads {SHARD_COORDINATOR} ({counted(count[0], 'message')} waiting): members get no answer", _SERVE)
    ]


def _coordinators(known: ShardFacts, late: datetime) -> Iterator[tuple[str, str]]:
    """Whether nodes note what members say and activate generations, and whether all have the same settings."""
    if known.heard_at is not None and known.heard_at < late:
        yield f"no sign of life of any member is stored since {_at(known.heard_at)}: no node answers them", _SERVE
    margin = timedelta(seconds=LEADER_MARGIN_S)
    stuck = [one for one in known.services if one.pending is not None and one.pending.closes_at + margin < known.now]
    if stuck:
        first = min((one.pending.began_at, one.name) for one in stuck if one.pending is not None)
        others = f" and of {len(stuck) - 1} more" if len(stuck) > 1 else ""
        yield f"no node activates the generation of {first[1]}{others}, pending since {_at(first[0])}", _SERVE
    if len(known.windows) > 1:
        windows = " and ".join(f"{one:g} s" for one in sorted(known.windows))
        yield (
            f"generations since the last node started had windows of {windows}: nodes have different settings",
            "set the same ORCHESTRIX_SHARDS__… on all nodes, and restart those that differ",
        )


def _unowned(known: ShardFacts, late: datetime) -> Iterator[tuple[str, str]]:
    for one in known.services:
        if one.unowned is None or one.unowned.since > late:
            continue
        many = counted(one.unowned.shards.size, "shard")
        if one.members:
            detail = f"service {one.name}: {many} without a member since {_at(one.unowned.since)}"
            yield detail, f"orchestrix shards show {shlex.quote(one.name)}"
        elif (
            one.active is not None and one.active.cause == CauseKind.INACTIVE and one.unowned.since > known.now - ENDED
        ):
            detail = f"service {one.name}: its last members fell silent, {many} without a member since"
            yield f"{detail} {_at(one.unowned.since)}", "start its members, if it is still needed"


def _unreleased(known: ShardFacts, late: datetime) -> Iterator[tuple[str, str]]:
    for one in known.services:
        for each in one.unreleased:
            if each.late and (each.unrevocable or each.since <= late):
                yield f"service {one.name}: {each.sentence()}", f"orchestrix shards show {shlex.quote(one.name)}"


def _full(known: ShardFacts) -> Iterator[tuple[str, str]]:
    for one in known.services:
        if one.members >= MOST_MEMBERS * NEARLY_FULL:
            detail = f"service {one.name}: {one.members:,} members, and more than {MOST_MEMBERS:,} are refused"
            yield detail, "run fewer members, or divide the work among several services"
    used = sum(one.members > 0 for one in known.services)
    if used >= MOST_SERVICES * NEARLY_FULL:
        yield f"{used:,} services have members, and more than {MOST_SERVICES:,} are refused", "run fewer services"


def _limited(found: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    known = list(found)
    more = len(known) - _SHOWN
    return known if more <= 0 else [*known[:_SHOWN], (f"and {more:,} more like the last", "orchestrix shards show")]


def _at(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
