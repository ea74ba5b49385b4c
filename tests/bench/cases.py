"""Which cases does a run of the bench have, and in which order?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.bench import bars, million, rivals
from tests.bench.bars import Bar
from tests.bench.measure import Spread, load, spread
from tests.bench.million import Listed
from tests.bench.product import Product, Result, middle, product
from tests.bench.rivals import Rival
from tests.bench.servers import Servers

PEERS: Final[dict[str, Callable[[Servers], AbstractContextManager[Rival]]]] = {
    "DBOS": rivals.dbos,
    "Celery": rivals.celery,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a run does. Numbers of sagas; `clients` start one saga after the other, `posting` over HTTP."""

    runs: int = 3
    inside: int = 4000
    clients: int = 1000
    http: int = 3000
    posting: int = 64
    at_20: int = 300
    at_100: int = 1000
    memory: int = 5000
    apps: int = 1_000_000
    gets: int = 200
    rival: int = 500
    rival_at_20: int = 200


FULL: Final = Sizes()
QUICK: Final = Sizes(1, 1000, 500, 500, 64, 60, 300, 1000, 50_000, 20, 100, 40)


@dataclass(frozen=True, slots=True)
class Row:
    """One case: the medians of its runs, and the machine's load meanwhile."""

    name: str
    result: Result
    load: float


@dataclass(frozen=True, slots=True)
class Figure:
    """What the cluster did `times` times, how long that took or how many a second it did, and the machine's load."""

    name: str
    times: int
    spread: Spread
    unit: str
    load: float


@dataclass(slots=True)
class Findings:
    """All that a run found out."""

    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)
    lists: list[Listed] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    unfit: str | None = None

    def take(self, name: str, runs: int, once: Callable[[], Result]) -> Result:
        """Runs a case several times and keeps the medians."""
        result = middle([once() for _ in range(runs)])
        self._add(name, result)
        return result

    def pairs(self, names: tuple[str, str], runs: int, once: Callable[[], tuple[Result, Result]]) -> list[Result]:
        """Like `take` for two cases whose runs take turns, so that both meet the same weather."""
        results = [middle(some) for some in zip(*(once() for _ in range(runs)), strict=True)]
        for name, result in zip(names, results, strict=True):
            self._add(name, result)
        return results

    def figure(self, name: str, numbers: Sequence[float], unit: str = "ms") -> Spread:
        """Keeps a figure of the cluster."""
        one = Figure(name, len(numbers), spread(numbers), unit, load())
        self.figures.append(one)
        how_often = f"{one.times} times, p50 {one.spread.p50:.0f}, p99" if one.times > 1 else "once,"
        print(f"  {name}: {how_often} {one.spread.p99:.0f} {unit} (load {one.load:.1f})", flush=True)
        return one.spread

    def _add(self, name: str, result: Result) -> None:
        self.rows.append(Row(name, result, load()))
        print(f"  {name}: {result.rate:.0f}/s, {result.cpu_total:.2f} ms CPU each (load {load():.1f})", flush=True)


def measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """All cases."""
    with product(servers, "ours") as one:
        ours = _under_load(one, found, sizes)
        _memory(one, found, sizes)
        _rivals(servers, found, sizes, ours)
        million.fill(servers, "million", sizes.apps)
        with product(servers, "million") as full:
            _hot_path(one, full, found, sizes)
            _lists(full, found, sizes)


def _under_load(one: Product, found: Findings, sizes: Sizes) -> float:
    """Both ways to start, at each load; the sagas a second in process at saturation."""
    _at_each_load("HTTP", one.http_at, partial(one.http, sizes.http, sizes.posting), found, sizes)
    flat_out = partial(one.inside, sizes.inside, sizes.clients)
    return _at_each_load("in process", one.inside_at, flat_out, found, sizes)


def _at_each_load(
    way: str, at: Callable[[int, float], Result], flat_out: Callable[[], Result], found: Findings, sizes: Sizes
) -> float:
    most = found.take(f"{way}, saturated", sizes.runs, flat_out)
    brisk = found.take(f"{way}, 100/s", sizes.runs, partial(at, sizes.at_100, 100))
    slow = found.take(f"{way}, 20/s", 1, partial(at, sizes.at_20, 20))
    assert brisk.latency is not None
    found.bars.append(bars.swift(way, brisk.latency.p99))
    found.bars.append(bars.falling(way, [each.cpu_total for each in (slow, brisk, most)]))
    return most.rate


def _memory(one: Product, found: Findings, sizes: Sizes) -> None:
    """The node and the worker after each quarter of a long run."""
    for _ in range(4):
        one.inside(sizes.memory, sizes.clients)
        found.memory.append(one.memory())
    early, late = found.memory[0], found.memory[-1]
    found.bars += [bars.flat(name, early[name], late[name]) for name in early]


def _rivals(servers: Servers, found: Findings, sizes: Sizes, ours: float) -> None:
    rates = {}
    for name, start in PEERS.items():
        with start(servers) as rival:
            most = found.take(f"{name}, saturated", sizes.runs, partial(rival.closed, sizes.rival))
            found.take(f"{name}, 100/s", 1, partial(rival.at, sizes.rival, 100))
            found.take(f"{name}, 20/s", 1, partial(rival.at, sizes.rival_at_20, 20))
            rates[name] = most.rate
    found.bars.append(bars.peers(ours, rates))
    found.unfit = bars.fit(rates["DBOS"], rates["Celery"])


def _hot_path(one: Product, full: Product, found: Findings, sizes: Sizes) -> None:
    names = ("in process, few apps", f"in process, {sizes.apps:,} apps")
    few, many = found.pairs(
        names, sizes.runs, lambda: (one.inside(sizes.inside, sizes.clients), full.inside(sizes.inside, sizes.clients))
    )
    found.bars.append(bars.stored(sizes.apps, few.cpu_total, many.cpu_total))


def _lists(full: Product, found: Findings, sizes: Sizes) -> None:
    for listed in million.listed(full, sizes.apps, sizes.gets):
        found.lists.append(listed)
        found.bars.append(bars.listing(listed.name, listed.latency.p99))
