"""Does nothing outlive a test run, even one that is killed?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.servers import reaper
from tests.servers.run import Account, CommandFailed, Run, command, environment
from tests.support import eventually_sync

# A run with a process whose child leads a session of its own; prints the folder and both pids, then waits.
PARENT = """
import os, sys
from pathlib import Path
from tests.servers.run import Run
run = Run()
child = run.spawn(["sh", "-c", "setsid sleep 600 & echo $! && wait"], env=dict(os.environ), cwd=run.root,
                  log=run.root / "log")
while not (line := (run.root / "log").read_text()).endswith(chr(10)):
    pass
print(run.root, child.pid, line, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_processes_and_folder_go_with_the_run(end: signal.Signals | None) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        folder, child, grandchild = parent.stdout.readline().split()
        assert alive(int(child))
        assert alive(int(grandchild))
        if end is not None:
            parent.send_signal(end)
        else:
            parent.stdin.close()
        parent.wait(10)
    eventually_sync(lambda: not alive(int(child)) and not alive(int(grandchild)), deadline=10)
    eventually_sync(lambda: not Path(folder).exists(), deadline=10)


def test_a_family_has_the_sessions_of_its_children(server_run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = server_run.spawn(
        ["sh", "-c", "setsid sleep 600 & echo $! && wait"], env=dict(os.environ), cwd=tmp_path, log=log
    )
    grandchild = int(eventually_sync(lambda: log.read_text() if log.read_text().endswith("\n") else "", deadline=10))
    assert set(reaper.family(process.pid)) >= {process.pid, grandchild}
    server_run.kill(process)
    assert not alive(grandchild)
    assert reaper.family(process.pid) == []


def test_pids_that_were_given_to_others_are_told_apart() -> None:
    ours = reaper.born(os.getpid())
    assert ours == reaper.born(os.getpid()) != reaper.born(1)
    assert reaper.born(2**30) == ""


def test_files_are_opened_up_for_servers_alone(server_run: Run, tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = server_run.spawn(["sh", "-c", "ulimit -n"], env=dict(os.environ), cwd=tmp_path, log=tmp_path / "log")
    process.wait(10)
    server_run.forget(process)
    assert int((tmp_path / "log").read_text()) >= min(65_536, before[1])
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_servers_are_not_run_by_root(server_run: Run) -> None:
    account = Account("postgres")
    folder = server_run.folder("account", account)
    user = command(["id", "-u"], env=environment(folder), cwd=folder, account=account)
    assert int(user) != 0


def test_a_failed_command_shows_its_output(server_run: Run) -> None:
    account = Account("nobody")
    folder = server_run.folder("account", account)
    with pytest.raises(CommandFailed, match="out of order"):
        command(["sh", "-c", "echo out of order; exit 3"], env=environment(folder), cwd=folder, account=account)


def alive(pid: int) -> bool:
    return pid in reaper.family(pid)
