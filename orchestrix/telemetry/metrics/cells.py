"""Cells: count or measure for one combination of a metric's labels, as fast as Python can.

They take no locks: each is used in one thread, that of the event loop, or under a lock of its user's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from orchestrix.telemetry.metrics.definitions import Metric
from orchestrix.telemetry.trace_context import TraceContext

_LAST_FLAG: Final = 54
"""Where the digit of the flags stands in a `traceparent` that says whether the trace is kept."""
_SAMPLED: Final = "13579bdf"


class Exemplar(NamedTuple):
    """One measurement, and the span that it is of."""

    value: float
    context: TraceContext


class Distribution(NamedTuple):
    """What a histogram has measured: how often in each bucket, the last of which has no bound, and the sum."""

    counts: Sequence[int]
    total: float
    exemplars: Sequence[Exemplar | None]


class CounterCell:
    """Counts."""

    __slots__ = ("value",)

    def __init__(self, metric: Metric) -> None:
        self.value: float = 0

    def add(self, count: float = 1) -> None:
        """Counts so many more."""
        self.value += count


class GaugeCell:
    """How many there are now."""

    __slots__ = ("value",)

    def __init__(self, metric: Metric) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        """It is so much now."""
        self.value = value

    def add(self, count: float = 1) -> None:
        """It is so much more now, or less."""
        self.value += count


class HistogramCell:
    """Measures."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_total")

    def __init__(self, metric: Metric) -> None:
        self._bounds = metric.buckets
        self._counts = [0] * (len(metric.buckets) + 1)
        self._exemplars: list[Exemplar | None] = [None] * (len(metric.buckets) + 1)
        self._total = 0.0

    def record(self, value: float, context: TraceContext | None = None) -> None:
        """One measurement, in the metric's unit. `context` is the span that it is of: shown, if its trace is kept.

        A time that a clock which was set back has made negative counts as 0.
        """
        if value < 0:
            value = 0.0
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self._total += value
        if context is not None and context.traceparent[_LAST_FLAG] in _SAMPLED:
            self._exemplars[place] = Exemplar(value, context)

    @property
    def value(self) -> Distribution:
        """All that was measured so far."""
        return Distribution(list(self._counts), self._total, list(self._exemplars))
