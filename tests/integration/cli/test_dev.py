"""Does a real `dev` serve, and find, the other commands of its folder?"""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

from tests.processes import Processes
from tests.support import eventually_sync, free_port


def dev_file(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / ".orchestrix" / "dev.json").read_text())
    return found


def test_the_life_of_dev(processes: Processes, tmp_path: Path) -> None:
    dev = processes.spawn("dev", "--port", str(free_port()))
    dev.wait_for_line_sync(r"^Ready in \d+\.\ds\. Ctrl-C to stop\.$")
    assert dev_file(tmp_path)["pid"] == dev.pid
    made = processes.run("apps", "create", "billing", "--by", "ada", "--wait", "20")
    assert made.returncode == 0, made.stderr
    assert "COMPLETED" in made.stdout
    assert processes.run("apps", "create", "billing", "--by", "ada").returncode == 4
    assert processes.run("apps", "show", "999").returncode == 3
    watched = processes.run("apps", "watch", "1", "-o", "json")
    assert [json.loads(line)["version"] for line in watched.stdout.splitlines()] == [1, 2, 3, 4]
    assert processes.run("dev").returncode == 4
    health = processes.run("doctor")
    assert health.returncode == 0, health.stdout
    dev.send(signal.SIGINT)
    assert dev.exited_sync() == 0
    assert not (tmp_path / ".orchestrix" / "dev.json").exists()


def test_after_a_kill_dev_comes_back_to_its_port_and_a_worker_follows_its_broker(
    processes: Processes, tmp_path: Path
) -> None:
    dev = processes.spawn("dev", "--port", str(free_port()))
    dev.wait_for_line_sync(r"^Ready in")
    worker = processes.spawn("worker")
    worker.wait_for_line_sync(r'"ready"')
    before = dev_file(tmp_path)
    dev.kill9()
    assert processes.run("apps", "list").returncode == 5
    again = processes.spawn("dev")
    again.wait_for_line_sync(r"^Ready in")
    assert dev_file(tmp_path)["apiUrl"] == before["apiUrl"]
    eventually_sync(
        lambda: "all are read" in processes.run("doctor").stdout, deadline=20, message="everything is connected again"
    )
    assert worker.returncode is None
    for process in (worker, again):
        process.terminate()
        assert process.exited_sync() == 0


def test_what_is_taken_is_passed_over_by_the_api_and_the_broker(processes: Processes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as api, socket.create_server(("127.0.0.1", 0)) as broker:
        taken = {"api": api.getsockname()[1], "broker": broker.getsockname()[1]}
        home = tmp_path / ".orchestrix"
        home.mkdir()
        (home / "last.json").write_text(json.dumps({"apiPort": 1, "brokerPort": taken["broker"]}))
        dev = processes.spawn("dev", "--port", str(taken["api"]))
        dev.wait_for_line_sync(rf"port {taken['api']} is taken, so the API listens on \d+")
        dev.wait_for_line_sync(rf"port {taken['broker']} is taken, so the broker listens on \d+")
        dev.wait_for_line_sync(r"^Ready in")
        assert processes.run("apps", "create", "billing", "--by", "ada", "--wait", "20").returncode == 0
        dev.terminate()
        assert dev.exited_sync() == 0
