"""How fast is the product beside its peers, and does it keep its promises?  Run by `make bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from tests.bench import bars, cases, cluster, executors, registry, report, rivals, shards, telemetry
from tests.bench.cases import Findings
from tests.bench.control import ChildDied
from tests.bench.measure import load
from tests.bench.product import ROOT, WrongResult
from tests.bench.servers import Servers, servers

RESULTS: Final = ROOT / "build" / "bench.json"


def _sagas(started: Servers, quick: bool, found: Findings) -> None:
    cases.measure(started, cases.QUICK if quick else cases.FULL, found)


def _cluster(started: Servers, quick: bool, found: Findings) -> None:
    cluster.measure(started, cluster.QUICK if quick else cluster.FULL, found)


def _executors(started: Servers, quick: bool, found: Findings) -> None:
    executors.measure(started, executors.QUICK if quick else executors.FULL, found)


def _registry(started: Servers, quick: bool, found: Findings) -> None:
    registry.measure(started, registry.QUICK if quick else registry.FULL, found)


def _shards(started: Servers, quick: bool, found: Findings) -> None:
    shards.measure(started, shards.QUICK if quick else shards.FULL, found)


def _telemetry(started: Servers, quick: bool, found: Findings) -> None:
    telemetry.measure(started, telemetry.QUICK if quick else telemetry.FULL, found)


PARTS: Final[dict[str, Callable[[Servers, bool, Findings], None]]] = {
    "sagas": _sagas,
    "cluster": _cluster,
    "executors": _executors,
    "registry": _registry,
    "shards": _shards,
    "telemetry": _telemetry,
}
"""What can be measured alone, in the order of a run."""


def main() -> int:
    """The exit code: 0 if every bar is reached, 1 if not (or a saga was lost), 2 if this machine was not fit."""
    asked = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    asked.add_argument("--quick", action="store_true", help="small numbers: shows that it works, proves nothing")
    asked.add_argument("--only", choices=PARTS, help="one part alone")
    options = asked.parse_args()
    parts = [options.only] if options.only else list(PARTS)
    if "sagas" in parts:
        rivals.install()
    print(f"load {load():.1f} before the start; quiet machines are below 0.5", flush=True)
    found = Findings()
    with servers() as started:
        try:
            for part in parts:
                PARTS[part](started, options.quick, found)
        except (WrongResult, ChildDied) as wrong:
            return _wrong(started, wrong)
    print(*report.lines(found), sep="\n")
    report.write(found, RESULTS)
    return bars.exit_code(found.bars, found.unfit)


def _wrong(started: Servers, wrong: Exception) -> int:
    print(f"no figures: {wrong}")
    for log in sorted(started.run.root.glob("*.log")):
        print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-20:], sep="\n")
    return bars.BELOW


if __name__ == "__main__":
    sys.exit(main())
