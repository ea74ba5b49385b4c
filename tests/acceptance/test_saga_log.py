"""Can a whole saga be followed over all processes by its correlation id, with nothing set for it?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.acceptance.system import Client, System
from tests.processes import Process
from tests.support import eventually

FOLLOWED = "follow-me"
FLAKY = """
from orchestrix import Command, Context, Permanent, handles

@handles("cmd.createGitRepo")
async def create(context: Context, command: Command) -> dict:
    if command.attempt == 1:
        raise LookupError("the disk is away")
    return {"repoUrl": "file:///x"}

@handles("cmd.deleteGitRepo")
async def delete(context: Context, command: Command) -> dict:
    return {}

@handles("cmd.registerApp")
def register(context: Context, command: Command) -> dict:
    raise Permanent("NameTaken", "somebody else has it")
"""


def json_lines(*processes: Process) -> list[dict[str, Any]]:
    """What they have written so far, by the time of each line."""
    found = [json.loads(line) for one in processes for line in one.log().splitlines() if line.startswith("{")]
    return sorted(found, key=lambda line: str(line["time"]))


@pytest.mark.req("S3-45")
async def test_a_saga_with_a_retry_and_a_failure_is_read_off_two_nodes_and_two_workers(system: System) -> None:
    (system.folder / "flaky.py").write_text(FLAKY)
    nodes = [system.node() for _ in range(2)]
    git = system.worker("-q", "cmd.createGitRepo", "-q", "cmd.deleteGitRepo", ORCHESTRIX_WORKERS="flaky")
    app = system.worker("-q", "cmd.registerApp", ORCHESTRIX_WORKERS="flaky")
    for _, url in nodes:
        await system.ready(url)
    for worker in (git, app):
        await worker.wait_for_line('"ready"')
    async with Client(nodes[0][1]) as client:
        answers = [
            await client.http.post(
                "/apps", json={"appName": name, "createdBy": "ada"}, headers={"X-Correlation-ID": name}
            )
            for name in (FOLLOWED, "another")
        ]

        async def failed() -> bool:
            return all([(await client.app(one.json()["id"]))["state"] == "FAILED" for one in answers])

        await eventually(failed, deadline=30, message="both have failed and are undone")
    processes = [*(process for process, _ in nodes), git, app]
    for process in processes:
        process.terminate()
        assert await process.exited() == 0
    lines = [line for line in json_lines(*processes) if line["correlation_id"] == FOLLOWED]
    assert [(line["event"], line.get("step"), line.get("try")) for line in lines] == [
        ("saga.started", None, None),
        ("worker.handler.failed", "createGitRepo", 1),
        ("saga.attempt.failed", "createGitRepo", 1),
        ("saga.step.succeeded", "createGitRepo", 2),
        ("worker.handler.failed", "registerApp", 1),
        ("saga.step.failed", "registerApp", 1),
        ("saga.step.undone", "createGitRepo", 1),
        ("saga.ended", None, None),
    ]
    ids = [json_lines(worker)[0]["worker_id"] for worker in (git, app)]
    assert [line.get("worker") for line in lines] == [None, *[ids[0]] * 3, *[ids[1]] * 2, ids[0], None]
    assert [line.get("error_type") for line in lines] == [
        None,
        *["LookupError"] * 2,
        None,
        *["NameTaken"] * 2,
        None,
        None,
    ]
    assert [line["role"] for line in lines if line["event"].startswith("worker.")] == ["worker"] * 2
    assert all(line["ms"] >= 0 for line in lines[1:])
    assert {line["app_id"] for line in lines} == {answers[0].json()["id"]}
    assert (lines[-1]["state"], lines[-1]["level"]) == ("FAILED", "info")
    for process in processes:
        last = json_lines(process)[-1]
        assert (last["event"], last["why"], last["level"]) == ("process.stopped", "SIGTERM", "info")
        assert 0 <= last["seconds"] < 30
