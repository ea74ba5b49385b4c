"""Which rows of the specification does no passing test name?

`requirements.txt` beside this file lists the rows: the id, and whether a document or a test proves it. A test names the
rows that it proves: `@pytest.mark.req("S3-47")`. What passed is kept in `build/requirements.json`; a run of a few tests
changes only what these say.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_name("requirements.txt")
RESULTS = _ROOT / "build" / "requirements.json"
_TOLD = "orchestrix_rows"
_PARTIAL = "orchestrix_partial"


def rows() -> dict[str, str]:
    """Each row's id and its kind of proof, `doc` or `test`, in the specification's order."""
    pairs = (line.split("\t") for line in ROWS.read_text().splitlines() if line)
    return dict(pairs)


def unproven(proven: Iterable[str]) -> list[str]:
    """The rows that need a test and are not among the proven ones."""
    known = set(proven)
    return [row for row, proof in rows().items() if proof == "test" and row not in known]


class Ledger:
    """The pytest plugin that writes down which rows the passing tests name.

    Where tests run in several processes, those that run tests hand on what they see; the one that started them writes.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._complete = config.args_source is not pytest.Config.ArgsSource.ARGS
        self._failed: set[str] = set()
        self._ended: dict[str, list[str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuses a mark that names no row."""
        known = rows()
        for item in items:
            unknown = [row for row in _named(item) if row not in known]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid} names unknown rows of the specification: {unknown}")

    def pytest_deselected(self) -> None:
        """Some tests were left out: what they proved before still stands."""
        self._complete = False
        if _sees_a_part(self._config):
            self._config.workeroutput[_PARTIAL] = True  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """A process that ran tests has ended."""
        if getattr(node, "workeroutput", {}).get(_PARTIAL):
            self._complete = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Lets the report say which rows its test names: it travels from process to process, the test does not."""
        report = yield
        setattr(report, _TOLD, _named(item))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has passed when set-up, call and tear-down have; a process may die before it comes to the last."""
        test, named = report.nodeid, getattr(report, _TOLD, [])
        if not report.passed:
            self._failed.add(test)
        if named and report.when == "teardown":
            self._ended[test] = named

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the results; an interrupted run adds to the last ones like a partial run."""
        if _sees_a_part(self._config):
            return
        complete = self._complete and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        results = {} if complete else load()
        for test in self._failed:
            results.pop(test, None)
        results |= {test: named for test, named in self._ended.items() if test not in self._failed}
        if results or RESULTS.exists():
            RESULTS.parent.mkdir(exist_ok=True)
            unfinished = RESULTS.with_suffix(f".{os.getpid()}")  # another run may read at any time
            unfinished.write_text(json.dumps(results, indent=1, sort_keys=True))
            unfinished.replace(RESULTS)


def _sees_a_part(config: pytest.Config) -> bool:
    """Whether this process runs tests for another one (pytest-xdist)."""
    return hasattr(config, "workerinput")


def load() -> dict[str, list[str]]:
    """Each passing test of the last runs and the rows that it names."""
    results: dict[str, list[str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def _named(item: pytest.Item) -> list[str]:
    return [row for mark in item.iter_markers("req") for row in mark.args]


def main() -> int:
    """Prints the rows without a passing test, a section of the specification per line."""
    if not RESULTS.exists():
        print("No results yet: run `make test` first.", file=sys.stderr)
        return 1
    needed = [row for row, proof in rows().items() if proof == "test"]
    missing = unproven(row for named in load().values() for row in named)
    for section in dict.fromkeys(row.partition("-")[0] for row in missing):
        print(*(row for row in missing if row.startswith(f"{section}-")))
    print(f"{len(needed) - len(missing)} of {len(needed)} rows that need a test are named by a passing one.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
