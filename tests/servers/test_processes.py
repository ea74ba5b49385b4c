"""Can a test start product processes, see what they print, and be sure that they end?"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes as module
from tests.architecture.source import ROOT
from tests.processes import Processes
from tests.servers import reaper

# Stands in for the product: prints its first argument and its settings, then waits; TERM ends it in order.
PRODUCT = """#!/bin/sh
trap 'echo drained; exit 0' TERM
echo "to stderr" >&2
echo "role $1, database $ORCHESTRIX_DATABASE_URL"
[ "$1" != short ] || exit 3
while :; do sleep 0.05; done
"""


@pytest.fixture(autouse=True)
def _product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "orchestrix"
    program.write_text(PRODUCT)
    program.chmod(0o755)
    monkeypatch.setattr(module, "ORCHESTRIX", program)
    monkeypatch.setenv("ORCHESTRIX_DATABASE_URL", "the developer's own")


@pytest.fixture
def processes(programs: Processes) -> Processes:
    """Those of the shell script."""
    return programs


async def test_its_lines_can_be_waited_for_and_it_ends_in_order(processes: Processes) -> None:
    worker = processes.spawn("worker", env={"ORCHESTRIX_DATABASE_URL": "the test's"})
    match = await worker.wait_for_line(r"^role (\w+), database (.*)$")
    assert match.groups() == ("worker", "the test's")
    assert worker.returncode is None
    worker.terminate()
    assert await worker.exited() == 0
    assert worker.log() == "to stderr\nrole worker, database the test's\ndrained\n"


async def test_settings_of_the_developer_do_not_leak_in(processes: Processes) -> None:
    await processes.spawn("worker").wait_for_line(r"database $")


def test_an_early_end_is_said_with_the_log(processes: Processes) -> None:
    worker = processes.spawn("short")
    with pytest.raises(AssertionError, match=r"short-1 ended with 3 without 'ready':\n(.*\n)*to stderr"):
        worker.wait_for_line_sync("ready")


def test_a_kill_takes_the_children_too(processes: Processes) -> None:
    worker = processes.spawn("worker")
    worker.wait_for_line_sync("role")
    family = reaper.family(worker.pid)
    worker.kill9()
    assert worker.returncode == -signal.SIGKILL
    assert not any(reaper.family(pid) for pid in family)


def test_a_frozen_process_goes_on_later(processes: Processes) -> None:
    worker = processes.spawn("worker")
    worker.wait_for_line_sync("role")
    worker.pause()
    worker.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.exited_sync(deadline=0.2)
    worker.resume()
    assert worker.exited_sync() == 0


def test_a_client_command_gives_code_and_both_streams(processes: Processes) -> None:
    result = processes.run("short")
    assert (result.returncode, result.stdout, result.stderr) == (3, "role short, database \n", "to stderr\n")


def test_the_logs_are_shown_when_a_test_fails(tmp_path: Path) -> None:
    source = f"""
from pathlib import Path
from tests import processes as module
def test_it(programs, monkeypatch):
    monkeypatch.setattr(module, "ORCHESTRIX", Path({str(tmp_path / "orchestrix")!r}))
    programs.spawn("worker", name="worker-of-the-test").wait_for_line_sync("role")
    assert False
"""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_it.py"]
    result = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert "worker-of-the-test (pid " in result.stdout, result.stdout + result.stderr
    assert "role worker, database" in result.stdout
