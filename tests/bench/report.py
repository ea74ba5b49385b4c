"""What does a reader of the bench see, and what does a program?"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.bench import bars
from tests.bench.cases import Findings, Row
from tests.bench.measure import Spread

_PROCESSES: Final = ("node", "worker", "submitter", "postgresql", "rabbitmq")
_HEAD: Final = ("case", "sagas/s", "CPU ms each", *_PROCESSES, "p50 ms", "p99 ms", "load")


def lines(found: Findings) -> Iterator[str]:
    """Every figure, then every bar, then the verdict. What was not measured is left out."""
    if found.rows:
        yield from table(_HEAD, [_cells(row) for row in found.rows])
        yield ""
    if found.lists:
        yield from _lists(found)
        yield ""
    for number, memory in enumerate(found.memory, 1):
        sizes = ", ".join(f"{name} {mb:.1f} MB" for name, mb in memory.items())
        yield f"memory after quarter {number}: {sizes}"
    if found.figures:
        yield ""
        yield from _figures(found)
    yield ""
    yield from table(
        ("bar", "measured", ""), [(bar.promise, bar.measured, "ok" if bar.kept else "BELOW") for bar in found.bars]
    )
    yield from [f"INVALID: {found.unfit}"] if found.unfit else []


def _lists(found: Findings) -> Iterator[str]:
    return table(
        ("GET /apps", "items", "p50 ms", "p99 ms", "worst ms"),
        [(one.name, str(one.items), *_three(one.latency, 1)) for one in found.lists],
    )


def _figures(found: Findings) -> Iterator[str]:
    return table(
        ("cluster", "times", "p50", "p99", "worst", "", "load"),
        [(one.name, str(one.times), *_three(one.spread, 0), one.unit, f"{one.load:.1f}") for one in found.figures],
    )


def _three(spread: Spread, digits: int) -> tuple[str, str, str]:
    return f"{spread.p50:.{digits}f}", f"{spread.p99:.{digits}f}", f"{spread.worst:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell; all but the first are set to the right."""
    every = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[place]) for row in every) for place in range(len(head))]
    for row in every:
        first, *others = (
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()


def write(found: Findings, path: Path) -> None:
    """The same as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(found), indent=2) + "\n")


def _document(found: Findings) -> dict[str, Any]:
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "cases": [
            {**asdict(row.result), "name": row.name, "rate": row.result.rate, "load": row.load} for row in found.rows
        ],
        "lists": [asdict(one) for one in found.lists],
        "memory": found.memory,
        "cluster": [asdict(one) for one in found.figures],
        "bars": [asdict(bar) for bar in found.bars],
        "invalid": found.unfit,
        "exit": bars.exit_code(found.bars, found.unfit),
    }


def _cells(row: Row) -> tuple[str, ...]:
    result, latency = row.result, row.result.latency
    times = (f"{latency.p50:.1f}", f"{latency.p99:.1f}") if latency else ("", "")
    used = (f"{result.cpu[name]:.2f}" if name in result.cpu else "" for name in _PROCESSES)
    return (row.name, f"{result.rate:.1f}", f"{result.cpu_total:.2f}", *used, *times, f"{row.load:.1f}")
