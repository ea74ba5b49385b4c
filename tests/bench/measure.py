"""How much processor time and memory do processes use, and how are many times summed up?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICK: Final = 1000 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds of many events."""

    p50: float
    p99: float
    worst: float


def spread(times: Sequence[float]) -> Spread:
    """Median, 99th percentile (nearest rank) and maximum of at least one number."""
    ordered = sorted(times)
    return Spread(_rank(ordered, 0.50), _rank(ordered, 0.99), ordered[-1])


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def median(numbers: Iterable[float]) -> float:
    """The middle number, or the mean of the two in the middle."""
    ordered = sorted(numbers)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def cpu_ms(pid: int) -> float:
    """Milliseconds of processor time that a process and all its descendants have used, also the ended ones."""
    children = _children()
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        total += _ticks(one) * _TICK
        waiting += children.get(one, [])
    return total


def rss_mb(pid: int) -> float:
    """MiB of memory that a process has in use, without its children."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def load() -> float:
    """Processes that ran or waited to run, on average over the last minute."""
    return os.getloadavg()[0]


class Meter:
    """Processor time of named process trees, and wall time, between `start` and `read`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self.start()

    def start(self) -> None:
        """Counts from now."""
        self._began = time.monotonic()
        self._before = {name: cpu_ms(pid) for name, pid in self._pids.items()}

    def read(self) -> dict[str, float]:
        """Milliseconds of processor time since `start`, by name."""
        return {name: cpu_ms(pid) - self._before[name] for name, pid in self._pids.items()}

    @property
    def seconds(self) -> float:
        """Wall time since `start`."""
        return time.monotonic() - self._began


def _ticks(pid: int) -> int:
    # The ended children are in the last two once their parent has waited for them.
    return sum(int(field) for field in _stat(pid)[11:15])


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))):
            found.setdefault(int(stat[1]), []).append(int(name))
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat (proc(5)) from the third on; empty for a process that has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
