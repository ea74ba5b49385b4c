"""How many sagas and jobs did this run look at, and how many of its tests found some lost, done twice or stuck?"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest

BROKEN: Final = {
    "lost": frozenset({"I1", "I3", "I9"}),
    "done twice": frozenset({"I5", "I8"}),
    "stuck": frozenset({"I2"}),
    "other promise broken": frozenset({"I4", "I6", "I7", "I10", "I11"}),
}
_PROMISE: Final = re.compile(r"\bI\d+(?=[:,])")
_TOLD: Final = "orchestrix_tally"
_seen: dict[tuple[str, str], int] = {}


def saw(kind: str, count: int, *, part: object = "") -> None:
    """The test that runs has checked that many of a kind; of what it checks again the most counts, part by part."""
    key = (kind, str(part))
    _seen[key] = max(_seen.get(key, 0), count)


class Tally:
    """The pytest plugin that adds up what the tests saw and prints it; it counts where the tests are chosen."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._broken: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Lets the report say what its test saw: it travels from process to process."""
        report = yield
        if call.when == "call":
            told: Counter[str] = Counter()
            for (kind, _), count in _seen.items():
                told[kind] += count
            setattr(report, _TOLD, dict(told))
            _seen.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds what one test saw, and which promises it found broken."""
        self._seen.update(getattr(report, _TOLD, {}))
        if report.failed:
            named = set(_PROMISE.findall(report.longreprtext))
            self._broken.update(word for word, promises in BROKEN.items() if named & promises)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line, where anything was seen."""
        if self._seen and not os.environ.get("PYTEST_XDIST_WORKER"):
            terminalreporter.write_line(self.line())

    def line(self) -> str:
        """What was seen and found: `checked 812 sagas; tests that found one lost: 0, …`."""
        seen = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self._seen.items()))
        return f"checked {seen}; tests that found one " + ", ".join(f"{word}: {self._broken[word]}" for word in BROKEN)
