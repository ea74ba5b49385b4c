"""Does the last line of a run say what was looked at and what was found broken?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

CONFTEST = """
from tests import tally
def pytest_configure(config):
    config.pluginmanager.register(tally.Tally(), "tally")
"""
TESTS = """
from tests import tally
def test_one():
    tally.saw("sagas", 3)
    tally.saw("sagas", 5)
    tally.saw("sagas", 4)
def test_seeds():
    for seed in range(10):
        tally.saw("sagas", 2, part=seed)
    tally.saw("jobs", 7)
def test_stuck():
    tally.saw("sagas", 1)
    assert False, "I2, I9: 4 rows are left in the outbox"
def test_says_nothing():
    assert False, "I am not a promise"
"""
LINE = "checked 7 jobs, 26 sagas; tests that found one lost: 1, done twice: 0, stuck: 1, other promise broken: 0"


@pytest.mark.parametrize("ways", [("-p", "no:xdist"), ("-p", "xdist", "-n", "2")])
def test_a_run_says_what_it_saw(tmp_path: Path, ways: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ways, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ.pop("PYTEST_XDIST_WORKER", None)
    shown = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert LINE in shown.stdout.splitlines(), shown.stdout + shown.stderr
