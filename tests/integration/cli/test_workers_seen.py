"""Is every worker process seen, and is one that is gone seen to be gone?"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.processes import Process, Processes
from tests.support import eventually_sync, free_port

BRIEF = {"ORCHESTRIX_JOBS__BEAT": "0.4", "ORCHESTRIX_JOBS__SILENT": "2"}


def listed(processes: Processes, *filters: str) -> dict[str, dict[str, Any]]:
    """The workers by their names without the mark of their start."""
    found = processes.run("workers", *filters, "-o", "json")
    assert found.returncode == 0, found.stderr
    return {one["id"].rpartition("-")[0]: one for one in json.loads(found.stdout)["items"]}


def worker(processes: Processes, name: str, *arguments: str) -> Process:
    process = processes.spawn("worker", *arguments, env={**BRIEF, "ORCHESTRIX_NODE_ID": name}, name=name)
    process.wait_for_line_sync(r'"ready"')
    return process


def test_workers_of_commands_come_and_go(processes: Processes, tmp_path: Path) -> None:
    dev = processes.spawn("dev", "--port", str(free_port()), env={**BRIEF, "ORCHESTRIX_NODE_ID": "dev"})
    dev.wait_for_line_sync(r"^Ready in")
    eventually_sync(lambda: "dev" in listed(processes), deadline=10, message="that of dev itself is seen")
    first, second = (worker(processes, name, "-q", "cmd.createGitRepo") for name in ("first", "second"))
    eventually_sync(lambda: {"first", "second"} <= listed(processes).keys(), deadline=10)
    seen = listed(processes, "--queue", "cmd.createGitRepo", "--kind", "commands")
    assert {one["state"] for one in seen.values()} == {"ALIVE"}
    assert seen["first"]["commandQueues"] == ["cmd.createGitRepo"]
    assert len(seen["dev"]["commandQueues"]) > 1
    node = json.loads(processes.run("cluster", "status", "-o", "json").stdout)["nodes"][0]
    assert {(one["host"], one["version"]) for one in seen.values()} == {(node["host"], node["version"])}
    began = time.monotonic()
    first.kill9()
    eventually_sync(lambda: listed(processes)["first"]["state"] == "SILENT", deadline=10, message="it is gone")
    assert time.monotonic() - began < 10
    assert listed(processes)["second"]["state"] == "ALIVE"
    second.terminate()
    assert second.exited_sync() == 0
    eventually_sync(lambda: "second" not in listed(processes), deadline=10, message="it has left")
    lines = [json.loads(line) for line in second.log().splitlines()]
    assert {line["worker_id"] for line in lines} == {seen["second"]["id"]}
    assert not [line for line in lines if line["worker_id"] in line["message"]], "the id is a field alone"
    last = lines[-1]
    assert last["message"].startswith("stopped after ")
    assert last["message"].endswith(" s, 0 unfinished: SIGTERM")
    assert (last["event"], last["why"], last["unfinished"]) == ("process.stopped", "SIGTERM", 0)
    assert 0 <= last["seconds"] < 30
    dev.terminate()
    assert dev.exited_sync() == 0
