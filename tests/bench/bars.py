"""What must the figures of a run be, and when do they mean nothing?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

DBOS_TO_CELERY: Final = 54.0 / 64.9
"""Sagas a second at saturation, of Celery 5.7.0 and DBOS 3.4.0, on two quiet cores (2026-11-27)."""
_STRAY: Final = 0.25
TIMES_THE_PEERS: Final = 3.0
AT_100: Final = 100.0
LIST: Final = 50.0
MILLION: Final = 0.10
FLAT: Final = 0.05
LED: Final = {"killed": 1000.0, "stopped": 500.0}
HANDED: Final = 100.0
MISSED, SILENT = 5.0, 65.0
DRAINED: Final = 10.0
DISPATCHED: Final = 50.0
CALLED: Final = 1.0
HEARD: Final = {"node": 10.0, "database": 3.0, "coordinator": 10.0}
"""Per cent of a core."""

REBALANCED: Final = 1000.0

TELEMETRY: Final = {"log lines": 0.05, "traces of one saga in ten": 0.15}
"""What may be lost of the sagas a second, as a part of those without."""

OK, BELOW, INVALID = 0, 1, 2
"""Exit codes: every bar is reached; one is not; the peers say that this machine was not fit to measure on."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise, what was measured, and whether it was kept."""

    promise: str
    measured: str
    kept: bool


def peers(ours: float, rivals: Mapping[str, float]) -> Bar:
    """Sagas a second at saturation, against the faster peer."""
    name = max(rivals, key=lambda rival: rivals[rival])
    times = ours / rivals[name]
    return Bar(f"at least {TIMES_THE_PEERS:g} × the faster peer", f"{times:.1f} × {name}", times >= TIMES_THE_PEERS)


def swift(way: str, p99_ms: float) -> Bar:
    """From the start to the commit of the last state at 100 sagas a second."""
    return Bar(f"p99 < {AT_100:g} ms at 100/s, {way}", f"{p99_ms:.1f} ms", p99_ms < AT_100)


def falling(way: str, cpu_ms: Sequence[float]) -> Bar:
    """Processor time per saga, in the order of rising load."""
    measured = " > ".join(f"{ms:.2f}" for ms in cpu_ms)
    kept = all(before > after for before, after in pairwise(cpu_ms))
    return Bar(f"CPU per saga falls as load rises, {way}", f"{measured} ms", kept)


def flat(process: str, early_mb: float, late_mb: float) -> Bar:
    """Memory of a process early and late in a long run."""
    measured = f"{early_mb:.1f} to {late_mb:.1f} MB"
    return Bar(f"memory of the {process} is flat (+{FLAT:.0%})", measured, late_mb <= early_mb * (1 + FLAT))


def stored(apps: int, empty: float, full: float) -> Bar:
    """What a saga costs with few and with many apps in the tables."""
    more = full / empty - 1
    return Bar(f"hot path at {apps:,} apps within {MILLION:.0%}", f"{more:+.1%}", more <= MILLION)


def listing(name: str, p99_ms: float) -> Bar:
    """A list of apps."""
    return Bar(f"GET /apps p99 < {LIST:g} ms, {name}", f"{p99_ms:.1f} ms", p99_ms < LIST)


def led(end: str, p99_ms: float) -> Bar:
    """From the end of a leader to the next one's first write."""
    return Bar(f"leader {end}: the next one writes, p99 < {LED[end]:g} ms", f"{p99_ms:.0f} ms", p99_ms < LED[end])


def handed(p99_ms: float) -> Bar:
    """From the change of a job's owner to the first of its events that the new one writes."""
    return Bar(f"job handed over: its next event, p99 < {HANDED:g} ms", f"{p99_ms:.0f} ms", p99_ms < HANDED)


def owned(how: str, limit: float, worst_ms: float) -> Bar:
    """From the end of a node to the last of its jobs that another one owns; `limit` is in seconds."""
    measured, kept = f"{worst_ms / 1000:.2f} s", worst_ms / 1000 < limit
    return Bar(f"node killed: all its jobs owned{how} < {limit:g} s", measured, kept)


def drained(jobs: int, took_ms: float) -> Bar:
    """From the word to stop to the last job that another node owns."""
    took = took_ms / 1000
    return Bar(f"node with {jobs} jobs stopped: others own all < {DRAINED:g} s", f"{took:.2f} s", took < DRAINED)


def dispatched(rate: float) -> Bar:
    """Jobs a second that reach workers."""
    return Bar(f"at least {DISPATCHED:g} jobs a second reach workers", f"{rate:.1f}/s", rate >= DISPATCHED)


def called(executors: float, workers: float) -> Bar:
    """Jobs a second that executors do, against workers with as many places, from the same nodes."""
    ratio = executors / workers
    return Bar(f"jobs to executors at least {CALLED:g} × those to workers", f"{ratio:.2f} ×", ratio >= CALLED)


def heard(process: str, how: str, percent: float) -> Bar:
    """Processor time that heartbeats of executors, or of members of services, cost."""
    limit = HEARD[process]
    return Bar(f"{how}: {process} < {limit:g} % of a core", f"{percent:.1f} %", percent < limit)


def rebalanced(allocation: str, worst_ms: float) -> Bar:
    """From the end of the window after a member's leave to the last of its shards that another one runs."""
    promise = f"one of 20 leaves 1,000 shards ({allocation}): rebalanced < {REBALANCED / 1000:g} s after the window"
    return Bar(promise, f"{worst_ms:.0f} ms", worst_ms < REBALANCED)


def fit(dbos: float, celery: float) -> str | None:
    """Why these rates of the peers cannot be believed, or None: their ratio must be near the known one."""
    ratio = dbos / celery
    stray = ratio / DBOS_TO_CELERY - 1
    if abs(stray) <= _STRAY:
        return None
    return (
        f"DBOS does {ratio:.2f} of what Celery does, {stray:+.0%} from the known {DBOS_TO_CELERY:.2f}:"
        " something else was at work on this machine"
    )


def observed(what: str, without: float, with_it: float) -> Bar:
    """Sagas a second at saturation, without and with what people look at afterwards."""
    lost = 1 - with_it / without
    return Bar(f"{what} cost less than {TELEMETRY[what]:.0%} of throughput", f"{lost:+.1%}", lost < TELEMETRY[what])


def exit_code(bars: Sequence[Bar], unfit: str | None) -> int:
    """INVALID beats a bar that was missed."""
    if unfit is not None:
        return INVALID
    return OK if all(bar.kept for bar in bars) else BELOW
