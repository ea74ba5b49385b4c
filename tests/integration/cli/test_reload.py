"""Does `dev --reload` start again when a source file changes, and wait where the new code does not start?"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.processes import Process, Processes
from tests.support import eventually_sync, free_port

MODULE = """
from orchestrix import COMPLETED, NothingToUndo, Saga, Step, handles

PARCEL = Saga("parcel", (Step("pack", "STATE", "cmd.pack", "evt.packed", COMPLETED, NothingToUndo("paper")),))

@handles("cmd.pack")
async def work(context, command):
    pass
"""


def edit(folder: Path, state: str, mark: int) -> None:
    path = folder / "parcel.py"
    path.write_text(MODULE.replace("STATE", state))
    os.utime(path, (mark, mark))  # Python takes bytecode for its own by the second and the size


def ready(process: Process, times: int) -> None:
    eventually_sync(
        lambda: process.log().count("Ready in") == times or process.returncode is not None,
        deadline=60,
        message=f"ready for time {times}",
    )
    assert process.returncode is None, process.log_tail()


@pytest.mark.req("S1-42")
@pytest.mark.parametrize(("flag", "env"), [(["--reload"], {}), ([], {"NODE_ENV": "development"})])
def test_each_change_starts_it_again_under_its_process_id(
    programs: Processes, tmp_path: Path, flag: list[str], env: dict[str, str]
) -> None:
    edit(tmp_path, "PACKING", 1)
    names = {"ORCHESTRIX_SAGAS": "parcel", "ORCHESTRIX_WORKERS": "parcel"}
    dev = programs.spawn("dev", "--port", str(free_port()), *flag, env={**names, **env})
    ready(dev, 1)
    edit(tmp_path, "WRAPPING", 2)
    dev.wait_for_line_sync(r"^Restarting: parcel\.py has changed\.$")
    ready(dev, 2)
    made = programs.run("sagas", "create", "parcel", "first", "--by", "ada", "--wait", "20", "-o", "json")
    assert made.returncode == 0, made.stderr
    assert json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())["pid"] == dev.pid
    (tmp_path / "parcel.py").write_text("def (")
    dev.wait_for_line_sync(r"^error: .*parcel")
    dev.wait_for_line_sync(r"^Waiting for a change of a source file\.")
    edit(tmp_path, "SENDING", 3)
    ready(dev, 3)
    assert "Traceback" not in dev.log()
    assert "Stopped." not in dev.log()
    dev.send(signal.SIGINT)
    assert dev.exited_sync() == 0
    assert dev.log().count("Stopped.") == 1


def test_without_it_no_change_is_looked_at(programs: Processes, tmp_path: Path) -> None:
    edit(tmp_path, "PACKING", 1)
    names = {"ORCHESTRIX_SAGAS": "parcel", "ORCHESTRIX_WORKERS": "parcel", "NODE_ENV": "production"}
    dev = programs.spawn("dev", "--port", str(free_port()), env=names)
    ready(dev, 1)
    (tmp_path / "parcel.py").write_text("def (")
    made = programs.run("sagas", "create", "parcel", "first", "--by", "ada", "--wait", "20")
    assert made.returncode == 0, made.stderr
    dev.send(signal.SIGINT)
    assert dev.exited_sync() == 0
    assert "Restarting" not in dev.log()
