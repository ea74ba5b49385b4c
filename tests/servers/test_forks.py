"""Is a forked process what a shell would have started, and can a test end it?"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forks import ROOT
from tests.processes import Process, Processes
from tests.servers import reaper
from tests.support import eventually_sync


@pytest.fixture
def waiting(processes: Processes) -> Iterator[Process]:
    """A command that asks an API which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield processes.spawn("apps", "list", "--api", f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_its_code_and_both_streams_are_told(processes: Processes) -> None:
    wrong = processes.run("nonsense")
    assert (wrong.returncode, wrong.stdout, wrong.stderr[:7]) == (2, "", "error: ")
    right = processes.run("--version")
    assert (right.returncode, right.stderr) == (0, "")
    assert right.stdout


def test_it_has_its_own_folder_and_settings(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "orchestrix.toml").write_text('node_id = "mine"\n')
    shown = processes.run("config", "show", "-o", "json", env={"ORCHESTRIX_API_URL": "http://a"})
    found = {item["setting"]: (item["value"], item["source"]) for item in json.loads(shown.stdout)["items"]}
    assert found["node_id"][0] == "mine"
    assert found["api_url"][0] == "http://a"


def test_who_waits_for_its_end_waits_no_longer_than_he_wants(waiting: Process) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.exited_sync(deadline=0.2)
    assert waiting.returncode is None
    waiting.kill9()
    assert waiting.returncode == -signal.SIGKILL


def test_it_leads_a_session_of_its_own_and_is_told_of_signals(waiting: Process) -> None:
    eventually_sync(lambda: reaper.stat_of(waiting.pid)[3] == str(waiting.pid), deadline=10, message="its session")
    waiting.terminate()
    assert waiting.exited_sync(deadline=20) == -signal.SIGTERM


def test_a_command_that_takes_too_long_is_ended(processes: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(subprocess.TimeoutExpired):
        processes.run("apps", "list", "--api", f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.5)


ENDING = """
import atexit, sys, threading, time
from tests.forks import _end

class Thrown:
    def __init__(self): self.itself = self
    def __del__(self): print("thrown away")

def last():
    time.sleep(0.1)
    print("thread")

atexit.register(print, "at exit")
Thrown()
threading.Thread(target=last).start()
_end(eval(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("ended", "code", "errors"), [("3", 3, ""), ("None", 0, ""), ("'why'", 1, "why\n"), ("0", 0, "")]
)
def test_it_ends_as_the_interpreter_does(ended: str, code: int, errors: str) -> None:
    command = [sys.executable, "-c", ENDING, ended]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, errors)
    assert done.stdout.split("\n") == ["thread", "at exit", "thrown away", ""]
