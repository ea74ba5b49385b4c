"""How soon does a cluster go on when nodes of it end, and how fast does it hand out jobs?"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tests.bench import bars
from tests.bench.cases import Findings
from tests.bench.nodes import NAMES, Cluster, cluster, name_of
from tests.bench.product import WrongResult
from tests.bench.servers import Servers
from tests.support import eventually, holds

TICK: Final = 0.02
"""Seconds between two lines of a job whose events are timed; the figure holds half of it on average."""
SLOW_TICK: Final = 2.0
OWNED_WITHIN: Final = 120.0
BEGUN_WITHIN: Final = 120.0
HEARD: Final = 2.2
"""Heartbeats after which a leader believes its ears, and nodes count as missed whose queues are gone."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a run does. `heartbeat` and `dead` are the nodes' settings, in seconds: the defaults, if it counts."""

    kills: int = 20
    stops: int = 20
    moving: int = 6
    rounds: int = 2
    orphans: int = 60
    drained: int = 500
    burst: int = 900
    """Jobs; with those that are there to warm up, no more than may be live at once."""
    heartbeat: float = 10.0
    dead: float = 30.0


FULL: Final = Sizes()
QUICK: Final = Sizes(3, 3, 6, 1, 15, 50, 200, 1.0, 4.0)


def measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """All of it. Raises `WrongResult` if a job was left without owner, or one of its events never came."""
    try:
        asyncio.run(_measure(servers, sizes, found))
    except AssertionError as wrong:
        raise WrongResult(str(wrong)) from wrong


async def _measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    await _leaders(servers, sizes, found)
    await _orphans(servers, sizes, found)
    await _dispatch(servers, sizes, found)
    await _drain(servers, sizes, found)


async def _leaders(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """Leaders are killed, and then others stopped that own jobs."""
    async with cluster(servers, "leaders") as one:
        await one.start(*NAMES)
        killed = [(await _next_leader(one, signal.SIGKILL))[1] for _ in range(sizes.kills)]
        found.bars.append(bars.led("killed", found.figure("leader killed: the next one's first write", killed).p99))
        one.work()
        await one.run(sizes.moving, TICK)
        stopped = [await _next_leader(one, signal.SIGTERM) for _ in range(sizes.stops)]
        left = found.figure("leader stopped: the next one's first write", [ms for _, ms in stopped])
        found.bars.append(bars.led("stopped", left.p99))
        gaps = await _gaps(one, [node for node, _ in stopped])
        found.bars.append(bars.handed(found.figure("job handed over: its next event", gaps).p99))


async def _next_leader(one: Cluster, number: signal.Signals) -> tuple[str, float]:
    """Ends the leader, and starts it anew as soon as the next one leads; who it was, and the time between."""
    term, leader = await one.evidence.term()
    at = await one.end(leader, number)

    async def led() -> datetime | None:
        return await one.evidence.led(term)

    since = await eventually(led, deadline=OWNED_WITHIN, every=0.05, message=f"a leader after term {term}")
    await one.ended(leader)
    await one.start(name_of(leader))
    assert since is not None
    return leader, _ms(since - at)


async def _gaps(one: Cluster, former: Sequence[str]) -> list[float]:
    async def all_heard() -> list[float] | None:
        gaps = await one.evidence.gaps(former)
        known = [ms for ms in gaps if ms is not None]
        return known if len(known) == len(gaps) else None

    return await eventually(all_heard, deadline=10.0, every=0.1, message="events of every job that has moved") or []


async def _orphans(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """Nodes are killed that own jobs. Where the fast way is off, little more is done than to wait: meanwhile."""
    timings = {"ORCHESTRIX_CLUSTER__HEARTBEAT": f"{sizes.heartbeat}", "ORCHESTRIX_CLUSTER__DEAD": f"{sizes.dead}"}
    off = {"ORCHESTRIX_CLUSTER__PRESENCE": f"{sizes.dead * 0.98}"}
    async with cluster(servers, "fast", **timings) as fast, cluster(servers, "slow", **timings, **off) as slow:
        missed, silent = await asyncio.gather(_missed(fast, sizes), _silent(slow, sizes))
    owned = found.figure("node killed: all its jobs owned", missed)
    found.bars.append(bars.owned("", bars.MISSED, owned.worst))
    owned = found.figure("node killed: the same by timers alone", silent)
    found.bars.append(bars.owned(" by timers alone", bars.SILENT, owned.worst))


async def _missed(one: Cluster, sizes: Sizes) -> list[float]:
    """A follower, then the leader, some times."""
    found: list[float] = []
    one.work(2 * sizes.orphans * sizes.rounds)
    for _ in range(sizes.rounds):
        await one.start(*(name for name in NAMES if name not in one.nodes))
        await one.run(sizes.orphans, SLOW_TICK)
        await holds(lambda: set(NAMES) == set(one.nodes), during=HEARD * sizes.heartbeat)
        found.append(await _owned(one, await one.follower()))
        found.append(await _owned(one, (await one.evidence.term())[1]))
    return found


async def _silent(one: Cluster, sizes: Sizes) -> list[float]:
    """A follower."""
    await one.start(*NAMES)
    one.work(2 * sizes.orphans)
    await one.run(sizes.orphans, SLOW_TICK)
    return [await _owned(one, await one.follower())]


async def _owned(one: Cluster, node: str) -> float:
    """Kills the node; the time until others own all its jobs."""
    jobs = await one.evidence.owned(node)
    assert jobs, f"{node} owns jobs"
    since = await one.end(node, signal.SIGKILL)
    took = await _given(one, node, jobs, since)
    await one.ended(node)
    return took


async def _given(one: Cluster, node: str, jobs: int, since: datetime) -> float:
    async def all_given() -> bool:
        return await one.evidence.owned(node) == 0

    await eventually(all_given, deadline=OWNED_WITHIN, every=0.05, message=f"others own the jobs of {node}")
    given, last = await one.evidence.given(node)
    assert given >= jobs, f"{given} of {jobs} jobs of {node} were given to others"
    return _ms(last - since)


async def _dispatch(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """More jobs than can be handed out at once: long ones, which is what jobs are for, and such as end at once."""
    async with cluster(servers, "dispatch") as one:
        await one.start(*NAMES)
        one.work(sizes.burst)
        one.work(sizes.burst)
        await one.run(5, SLOW_TICK)
        stay = await _burst(one, "stay", sizes.burst)
    found.figure("jobs begun by workers, of a burst", [stay], "/s")
    found.bars.append(bars.dispatched(stay))
    async with cluster(servers, "short") as one:
        await one.start(*NAMES)
        one.work()
        one.work()
        await one.run(5, SLOW_TICK)
        found.figure("the same, if each ends at once", [await _burst(one, "nothing", sizes.burst)], "/s")


async def _burst(one: Cluster, handler: str, jobs: int) -> float:
    """Jobs a second that workers begin once all are put down."""
    await one.submit(handler, jobs)

    async def all_begun() -> bool:
        begun, there = await one.evidence.begun(handler)
        return begun == there

    await eventually(all_begun, deadline=BEGUN_WITHIN, every=0.1, message="every job is begun")
    return await one.evidence.rate(handler)


async def _drain(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """A node that owns every job is stopped; two others are there."""
    first, *others = NAMES
    async with cluster(servers, "drain") as one:
        await one.start(first)
        one.work(sizes.drained)
        await one.run(sizes.drained, SLOW_TICK)
        await one.start(*others)
        node = await one.evidence.node(first)
        jobs = await one.evidence.owned(node)
        took = await _given(one, node, jobs, await one.end(node, signal.SIGTERM))
        await one.ended(node)
    found.figure(f"node with {jobs} jobs stopped: others own all", [took])
    found.bars.append(bars.drained(sizes.drained, took))


def _ms(time: timedelta) -> float:
    return time / timedelta(milliseconds=1)
