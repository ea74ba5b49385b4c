"""Is what the page about sagas says true?"""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from orchestrix import Compensation, RetryPolicy, Saga, Step
from orchestrix.cli.arguments import parse
from orchestrix.saga.messages import MAX_DATA
from orchestrix.worker import errors
from tests.documents import README, ROOT, block

PAGE = ROOT / "docs" / "sagas.md"
TEXT = PAGE.read_text()
RUN = """

import unittest

class Documents(unittest.TestCase):
    def test_the_documents(self):
        test_a_trip()
        test_what_was_booked_is_given_back()
"""


def test_the_tests_of_the_page_run_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "trips.py").write_text(block(PAGE, "python", "TRIP = Saga("))
    (tmp_path / "test_trips.py").write_text(block(PAGE, "python", "given(") + RUN)
    run = [sys.executable, "-W", "error", "-m", "unittest", "-v", "test_trips"]
    ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "Ran 1 test" in ended.stderr


def test_all_that_there_is_to_say_is_documented() -> None:
    for kind in (Saga, Step, Compensation, RetryPolicy):
        (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{kind.__name__}(")]
        assert [field.name for field in dataclasses.fields(kind) if field.name not in row] == [], row
    raised = [name for name in errors.__all__ if isinstance(getattr(errors, name), type) and name != "StepFailed"]
    assert [name for name in raised if f"raises `{name}" not in TEXT] == []


def test_the_defaults_are_those_of_the_code() -> None:
    policy, minute = RetryPolicy(), timedelta(seconds=60)
    times = {
        field.default for kind in (Step, Compensation) for field in dataclasses.fields(kind) if field.name == "timeout"
    }
    assert times == {minute}
    assert (policy.attempts, policy.base, policy.cap, policy.never) == (5, minute / 60, 5 * minute, ())
    assert "RetryPolicy(attempts=5, base=1 s, cap=5 min, never=())" in TEXT
    assert f"{MAX_DATA // 1024} KiB" in TEXT


def test_the_commands_can_be_typed() -> None:
    for line in block(PAGE, "sh", "--stuck").splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "orchestrix"
        parse(arguments)


def test_the_readme_leads_here() -> None:
    assert "[docs/sagas.md](docs/sagas.md)" in README.read_text()
