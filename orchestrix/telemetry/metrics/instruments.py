"""Instruments: count and measure for the metrics of the catalogue.

A module asks for the cell of its labels' values with `at`, and counts with it. What is in memory anyway is not counted
but watched: a function that returns the values is called at each scrape, in another thread, so it only reads
attributes.
Names that users have chosen are limited (`NAME_LIMIT`, `SERIES_LIMIT`): whatever a process is asked to do, it never has
more series than a Prometheus server should be given.

They are not the OpenTelemetry SDK's own instruments, which look up the labels again for each measurement: one costs as
much there as twenty of these. `otlp` passes the sums on to the SDK.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from orchestrix.telemetry.metrics.cells import CounterCell, Distribution, GaugeCell, HistogramCell
from orchestrix.telemetry.metrics.definitions import Kind, Metric

NAME_LIMIT: Final = 100
"""How many names of one kind, such as those of sagas, a process keeps apart."""
SERIES_LIMIT: Final = 2_000
"""How many series a process has at most."""
RESERVED_SERIES: Final = 400
"""So many of them are kept for metrics and labels without names of users', and for `OTHER`."""
HISTOGRAM_SERIES_LIMIT: Final = 500
"""How many series one histogram has at most: the steps of many sagas must leave room for the sagas themselves."""
REMEMBERED_LABELS: Final = 5_000
"""For how many labels of users' an instrument remembers the cell: they may be more than are shown."""
OTHER: Final = "other"
"""Stands for all names beyond these limits."""

Labels = tuple[str, ...]
Values = Mapping[Any, float]
"""The values of a metric by those of its labels, in the catalogue's order."""
Watched = Callable[[], Values]
C = TypeVar("C", CounterCell, GaugeCell, HistogramCell)


class SeriesLimit:
    """Decides which names become labels of a process, and which are `OTHER`."""

    def __init__(self, limit: int = SERIES_LIMIT - RESERVED_SERIES) -> None:
        self._limit = limit
        self._names: dict[str, set[str]] = defaultdict(set)
        self._named: set[tuple[str, Labels]] = set()
        self._counts: Counter[str] = Counter()
        """How many series of them each metric has."""

    def shown(self, metric: Metric, labels: Labels) -> Labels:
        """The labels under which these are shown."""
        if (metric.name, labels) in self._named or not any(label.given for label in metric.labels):
            return labels
        pairs = list(zip(metric.labels, labels, strict=True))
        shown = tuple(self._name(label.key, value) if label.given else value for label, value in pairs)
        if (metric.name, shown) in self._named or shown == _all_other(metric, labels):
            return shown
        if not self._has_room(metric):
            return _all_other(metric, labels)
        self._named.add((metric.name, shown))
        self._counts[metric.name] += metric.series
        return shown

    def forget(self, metric: Metric, labels: Labels) -> None:
        """They are shown no more, for now."""
        if (metric.name, labels) in self._named:
            self._named.remove((metric.name, labels))
            self._counts[metric.name] -= metric.series

    def _has_room(self, metric: Metric) -> bool:
        if self._counts.total() + metric.series > self._limit:
            return False
        return metric.kind is not Kind.HISTOGRAM or (
            self._counts[metric.name] + metric.series <= HISTOGRAM_SERIES_LIMIT
        )

    def _name(self, kind: str, value: str) -> str:
        names = self._names[kind]
        if value not in names and len(names) >= NAME_LIMIT:
            return OTHER
        names.add(value)
        return value


def _all_other(metric: Metric, labels: Labels) -> Labels:
    return tuple(OTHER if label.given else value for label, value in zip(metric.labels, labels, strict=True))


class Instrument(Generic[C]):
    """One metric of this process: its cells, what is kept for it, and what is watched."""

    def __init__(self, metric: Metric, cell: type[C], lock: threading.RLock, limit: SeriesLimit) -> None:
        self.metric = metric
        self._cell_type: type[C] = cell
        self._lock, self._limit = lock, limit
        self._cells: dict[Labels, C] = {}
        self._remembered: dict[Labels, C] = {}
        self._kept: dict[Labels, float] = {}
        self._watched: list[Watched] = []
        for labels in metric.start if metric.labels else ((),):
            self._start(labels)

    def _start(self, labels: Labels) -> None:
        """A gauge that was never set is not shown; what has been counted is, from 0."""
        if self._cell_type is not GaugeCell:
            self.at(*labels)

    def at(self, *values: str) -> C:
        """The cell of these values of the labels, in the catalogue's order. To be kept by whoever counts often."""
        found = self._remembered.get(values)
        return found if found is not None else self._cell_of(values)

    def _cell_of(self, values: Labels) -> C:
        assert len(values) == len(self.metric.labels), f"{self.metric.name} has other labels"
        with self._lock:
            shown = self._limit.shown(self.metric, values)
            if shown not in self._cells:
                self._cells[shown] = self._cell_type(self.metric)
            if len(self._remembered) < REMEMBERED_LABELS:
                self._remembered[values] = self._cells[shown]
            return self._cells[shown]

    def keep(self, values: Values) -> None:
        """The values are these from now on, and there are no others, until it is called again."""
        with self._lock:
            kept = self._added({}, values)
            for labels in self._kept.keys() - kept.keys():
                self._limit.forget(self.metric, labels)
            self._kept = kept

    def watch(self, values: Watched) -> Callable[[], None]:
        """`values` is called at each scrape, in another thread. Returns a function that ends that."""
        self._watched.append(values)

        def end() -> None:
            if values in self._watched:
                self._watched.remove(values)

        return end

    def values(self) -> dict[Labels, Any]:
        """What is shown: a number, or a `Distribution` of a histogram. Values of several owners are added."""
        with self._lock:
            found: dict[Labels, Any] = {labels: cell.value for labels, cell in self._cells.items()}
            self._added(found, self._kept)
            for watched in list(self._watched):
                self._added(found, watched())
        return found

    def _added(self, sums: dict[Labels, Any], values: Values) -> dict[Labels, Any]:
        for labels, value in values.items():
            shown = self._limit.shown(self.metric, labels)
            sums[shown] = sums.get(shown, 0) + value
        return sums


class Registry:
    """The metrics of one process."""

    def __init__(self, limit: SeriesLimit | None = None) -> None:
        self._lock = threading.RLock()
        self._limit = limit or SeriesLimit()
        self._instruments: dict[str, Instrument[Any]] = {}

    def counter(self, metric: Metric) -> Instrument[CounterCell]:
        """The instrument of a counter."""
        return self._instrument(metric, Kind.COUNTER, CounterCell)

    def gauge(self, metric: Metric) -> Instrument[GaugeCell]:
        """The instrument of a gauge."""
        return self._instrument(metric, Kind.GAUGE, GaugeCell)

    def histogram(self, metric: Metric) -> Instrument[HistogramCell]:
        """The instrument of a histogram."""
        return self._instrument(metric, Kind.HISTOGRAM, HistogramCell)

    def hold(self) -> None:
        """Nothing changes, and nothing is read, until `release`."""
        self._lock.acquire()

    def release(self) -> None:
        """Ends `hold`."""
        self._lock.release()

    def snapshot(self) -> Iterator[tuple[Metric, dict[Labels, float | Distribution]]]:
        """The metrics that have values, and these; those of a metric are of one moment."""
        for one in sorted(self._instruments.values(), key=lambda one: one.metric.name):
            if values := one.values():
                yield one.metric, values

    def values(self, metric: Metric) -> dict[Labels, Any]:
        """What is shown of one metric now."""
        found = self._instruments.get(metric.name)
        return {} if found is None else found.values()

    def _instrument(self, metric: Metric, kind: Kind, cell: type[C]) -> Instrument[C]:
        assert metric.kind is kind, f"{metric.name} is no {kind.value}"
        with self._lock:
            found = self._instruments.get(metric.name)
            if found is None:
                found = self._instruments[metric.name] = Instrument(metric, cell, self._lock, self._limit)
            return found


PROCESS: Final = Registry()
"""The metrics of this process."""
counter, gauge, histogram = PROCESS.counter, PROCESS.gauge, PROCESS.histogram

if hasattr(os, "register_at_fork"):  # else a child waits for ever where another thread has held the lock, in a scrape
    os.register_at_fork(before=PROCESS.hold, after_in_parent=PROCESS.release, after_in_child=PROCESS.release)
