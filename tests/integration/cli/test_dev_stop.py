"""Does `dev` end in good order while its jobs run, and go on with them at its next start?"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance import chatter
from tests.processes import Process, Processes
from tests.support import eventually_sync, free_port

JOBS = 4


def started(processes: Processes, folder: Path, patience: str) -> tuple[Process, str]:
    """`dev`, whose jobs have that many seconds to end, and the address of its API."""
    shutil.copy(Path(chatter.__file__), folder)
    env = {"ORCHESTRIX_WORKERS": chatter.NAME, "ORCHESTRIX_WORKER__STOP_TIMEOUT": patience}
    dev = processes.spawn("dev", "--port", str(free_port()), env=env)
    dev.wait_for_line_sync(r"^Ready in", deadline=60)
    url = json.loads((folder / ".orchestrix" / "dev.json").read_text())["apiUrl"]
    return dev, str(url)


def talking(api: str, folder: Path, count: int) -> list[str]:
    """The ids of so many jobs that run, and may not be tried again after a failure."""
    order = {"queue": chatter.NAME, "handler": chatter.NAME, "payload": {"until": str(folder / "enough"), "pause": 0.3}}
    ids = [str(httpx.post(f"{api}/jobs", json=order, timeout=20).json()["id"]) for _ in range(count)]
    eventually_sync(
        lambda: all(found(api, id)["progress"] for id in ids), deadline=60, message="all of them run and talk"
    )
    return ids


def found(api: str, id: str) -> dict[str, Any]:
    body: dict[str, Any] = httpx.get(f"{api}/jobs/{id}", timeout=20).json()
    return body


def test_jobs_that_dev_interrupts_go_on_at_its_next_start(processes: Processes, tmp_path: Path) -> None:
    dev, api = started(processes, tmp_path, "0.5")
    ids = talking(api, tmp_path, JOBS)
    dev.terminate()
    assert dev.exited_sync(deadline=60) == 0
    (tmp_path / "enough").touch()
    _, api = started(processes, tmp_path, "0.5")
    eventually_sync(
        lambda: {found(api, id)["state"] for id in ids} == {"SUCCEEDED"}, deadline=60, message="they go on at once"
    )
    for id in ids:
        first, second = found(api, id)["attempts"]
        assert (first["state"], first["error"]["type"]) == ("FAILED", "WorkerStopped")
        assert second["attempt"] == 2


def dev_worker(api: str) -> dict[str, Any]:
    """The only worker that there is."""
    (worker,) = httpx.get(f"{api}/cluster", timeout=20).json()["workers"]
    return dict(worker)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dev_answers_until_its_jobs_have_ended_and_says_that_it_is_stopping(
    processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    dev, api = started(processes, tmp_path, "60")
    (id,) = talking(api, tmp_path, 1)
    dev.send(number)
    dev.wait_for_line_sync(
        r"stopping: waiting up to 60 s for 1 running job\. Press Ctrl-C again to stop now "
        r"\(commands and jobs that are cut off restart"
    )
    ready = httpx.get(f"{api}/health/ready", timeout=20)
    assert ready.status_code == 503
    assert {"component": "Stop", "isHealthy": False, "reason": "the process is stopping"} in ready.json()["checks"]
    assert found(api, id)["state"] == "RUNNING"
    told = processes.run("cluster", "status").stdout.split("\n")
    assert told[0].split(maxsplit=1) == ["leader", "nobody (this node is stopping)"]
    own = dev_worker(api)
    assert any(line.split()[:2] == [own["id"], "DRAINING"] for line in told)
    assert (own["queues"], own["commandQueues"], own["jobs"]) == ([], [], 1), "its worker takes nothing new"
    (node,) = httpx.get(f"{api}/cluster", timeout=20).json()["nodes"]
    assert (node["state"], node["jobCount"]) == ("DRAINING", 1), "it is seen to end, and goes on with its job"
    answer = processes.run("doctor")
    assert f"{api} is stopping: " in answer.stdout
    assert answer.returncode == 0
    (tmp_path / "enough").touch()
    assert dev.exited_sync(deadline=60) == 0
    again, api = started(processes, tmp_path, "60")
    done = found(api, id)
    assert (done["state"], done["attempt"]) == ("SUCCEEDED", 1)
    again.terminate()


def test_a_second_signal_ends_dev_at_once_and_its_jobs_begin_anew_at_the_next_start(
    processes: Processes, tmp_path: Path
) -> None:
    dev, api = started(processes, tmp_path, "60")
    ids = talking(api, tmp_path, 2)
    dev.send(signal.SIGINT)
    dev.wait_for_line_sync(r"stopping: waiting up to 60 s for 2 running jobs\. Press Ctrl-C again to stop now")
    dev.send(signal.SIGINT)
    assert dev.exited_sync(deadline=10) == -signal.SIGINT
    assert (
        "stopped before the end: 2 running jobs; commands and jobs that are cut off restart at the next start"
        in dev.log()
    )
    (tmp_path / "enough").touch()
    again, api = started(processes, tmp_path, "60")
    assert "Note      the previous `orchestrix dev` was killed with jobs running: 2 jobs restarted" in again.log()
    eventually_sync(
        lambda: {found(api, id)["state"] for id in ids} == {"SUCCEEDED"}, deadline=20, message="without retries"
    )
    first, second = found(api, ids[0])["attempts"]
    assert (first["state"], first["error"]["type"], second["attempt"]) == ("LOST", "WorkerStopped", 2)


def test_what_was_at_work_in_a_dev_that_was_killed_is_known_at_the_next_start(
    processes: Processes, tmp_path: Path
) -> None:
    dev, api = started(processes, tmp_path, "60")
    (id,) = talking(api, tmp_path, 1)
    dev.kill9()
    again, api = started(processes, tmp_path, "60")
    assert "Note      the previous `orchestrix dev` was killed with jobs running: 1 job failed" in again.log()
    assert (found(api, id)["state"], found(api, id)["error"]["type"]) == ("FAILED", "WorkerLost")
    nodes = httpx.get(f"{api}/cluster", timeout=20).json()["nodes"]
    assert [one["state"] for one in nodes] == ["ALIVE", "DEAD"]


def test_a_worker_that_stops_is_shown_as_that_and_a_second_signal_says_what_it_cuts_off(
    processes: Processes, tmp_path: Path
) -> None:
    env = {"ORCHESTRIX_WORKERS": chatter.NAME, "ORCHESTRIX_WORKER__STOP_TIMEOUT": "60"}
    dev = processes.spawn("dev", "--port", str(free_port()))
    dev.wait_for_line_sync(r"^Ready in", deadline=60)
    shutil.copy(Path(chatter.__file__), tmp_path)
    worker = processes.spawn("worker", env=env)
    worker.wait_for_line_sync(r'"ready"')
    api = str(json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())["apiUrl"])
    talking(api, tmp_path, 1)
    worker.send(signal.SIGINT)
    worker.wait_for_line_sync(
        r"stopping: waiting up to 60 s for 1 running job\. Press Ctrl-C again to stop now \(commands are redelivered"
    )
    late = str(httpx.post(f"{api}/jobs", json={"queue": chatter.NAME, "handler": "x"}, timeout=20).json()["id"])

    def shown() -> list[str]:
        return [one["state"] for one in httpx.get(f"{api}/cluster", timeout=20).json()["workers"]]

    eventually_sync(lambda: sorted(shown()) == ["ALIVE", "DRAINING"], deadline=20, message="it is shown as ending")
    stopping = f"queue {chatter.NAME}: the last worker is stopping: start another with"
    eventually_sync(
        lambda: stopping in str(found(api, late)["waitsFor"]), deadline=30, message="it is said that it ends"
    )
    worker.send(signal.SIGINT)
    assert worker.exited_sync(deadline=10) == -signal.SIGINT
    assert "stopped before the end: 1 running job; commands are redelivered" in worker.log()
    last = json.loads(worker.log().splitlines()[-1])
    assert (last["event"], last["why"], last["level"]) == ("process.stopped", "second SIGINT", "warning")
    dev.terminate()
    assert dev.exited_sync(deadline=60) == 0
