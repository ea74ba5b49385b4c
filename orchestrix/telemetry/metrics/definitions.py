"""Metric definitions: what the catalogue says of a metric, and the names that it has in Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_SECONDS: Final = "s"


class Kind(Enum):
    """What a metric's values mean."""

    COUNTER = "counter"
    """Rises, from 0 at the start of the process."""
    GAUGE = "gauge"
    """How many there are now: values of several processes may be added."""
    HISTOGRAM = "histogram"
    """How often a measurement fell into each bucket."""


class ReportedBy(Enum):
    """Whose values they are, and so how those of several processes are aggregated."""

    PROCESS = "process"
    """Each process reports its own: add them."""
    LEADER = "leader"
    """Of the whole cluster, read from the database by the leader alone: the others have no such series, so the sum is
    right, and there is none while no node leads."""
    EVERY_NODE = "every node"
    """Of the whole cluster, as each node sees it: take the largest, never the sum."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label. `key` is the attribute's name in OpenTelemetry.

    The values of one that is `given` are names that users have chosen: a process keeps the first ones apart, and all
    others are `other`. Those of the rest are the library's own words.
    """

    key: str
    given: bool = False

    @property
    def prometheus(self) -> str:
        """The label's name in Prometheus."""
        return _NO_NAME.sub("_", self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `name` and `unit` are OpenTelemetry's; `help` is one sentence.

    `promise` is the promise of the product that it shows to be kept, if it shows one. `buckets` are the upper bounds of
    a histogram, in its unit. `start` are the values of labels that are there from the start of a process, with 0: so
    that the first increase is seen as one.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[Label, ...] = ()
    reported_by: ReportedBy = ReportedBy.PROCESS
    promise: str | None = None
    buckets: tuple[float, ...] = ()
    start: tuple[tuple[str, ...], ...] = ()

    @property
    def family(self) -> str:
        """The name of the family in OpenMetrics: with its unit, and without `_total`."""
        unit = "_seconds" if self.unit == _SECONDS else ""
        return _NO_NAME.sub("_", self.name) + unit

    @property
    def sample(self) -> str:
        """The name of its series in Prometheus; of a histogram the stem of their names."""
        return self.family + ("_total" if self.kind is Kind.COUNTER else "")

    @property
    def series(self) -> int:
        """How many series each combination of labels is."""
        return len(self.buckets) + 3 if self.kind is Kind.HISTOGRAM else 1
