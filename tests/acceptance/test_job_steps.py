"""Does a saga with a job as a step run as the page about jobs says, in a `dev` elsewhere?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.documents import ROOT, block
from tests.processes import Processes
from tests.support import NO_TLS, free_port

PAGE = ROOT / "docs" / "jobs.md"
RELEASE = {"ORCHESTRIX_SAGAS": "release", "ORCHESTRIX_WORKERS": "release"}


@pytest.fixture
async def api(processes: Processes, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The API of a `dev` that knows the saga of the page and its workers."""
    (tmp_path / "release.py").write_text(block(PAGE, "python", "RELEASE = Saga("))
    dev = processes.spawn("dev", "--port", str(free_port()), cwd=tmp_path, env=RELEASE)
    await dev.wait_for_line("^Ready in")
    url = json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())["apiUrl"]
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield client


async def ended(api: httpx.AsyncClient, version: str) -> tuple[dict[str, Any], list[str]]:
    """A release of that version once it has ended, and the reasons in its history."""
    wanted = {"key": version, "createdBy": "ada", "data": {"version": version}}
    seen = (await api.post("/sagas/release", json=wanted)).json()
    while seen["state"] not in ("COMPLETED", "FAILED"):
        since = seen["version"]
        answer = await api.get(f"/sagas/release/{seen['id']}", params={"wait": "20s", "sinceVersion": since})
        seen = answer.json()
        assert seen["version"] > since, f"nothing moved within 20 s: {seen}"
    history = (await api.get(f"/sagas/release/{seen['id']}/history")).json()["items"]
    return seen, [row["reason"] for row in history]


async def job_of(api: httpx.AsyncClient, saga: dict[str, Any]) -> dict[str, Any]:
    """The job of a release."""
    [mine] = (await api.get("/jobs", params={"saga": "release", "sagaId": saga["id"]})).json()["items"]
    assert (mine["saga"], mine["sagaId"], mine["step"]) == ("release", saga["id"], "build")
    assert mine["correlationId"] == saga["correlationId"]
    return dict(mine)


async def test_a_job_is_a_step_and_its_failure_is_undone(api: httpx.AsyncClient) -> None:
    done, reasons = await ended(api, "1.2")
    assert (done["state"], done["data"]) == ("COMPLETED", {"version": "1.2", "image": "registry/shop:1.2"})
    assert reasons == ["created", "evt.tagged", "evt.built"]
    job = await job_of(api, done)
    assert (job["state"], job["handler"], job["attempt"]) == ("SUCCEEDED", "build-image", 1)
    lines = (await api.get(f"/jobs/{job['id']}/logs")).json()["items"]
    assert [line["message"] for line in lines] == ["building 1.2"]

    failed, reasons = await ended(api, "broken")
    job = await job_of(api, failed)
    why = f"NoCompiler: broken cannot be built (job {job['id']})"
    assert reasons == [
        "created",
        "evt.tagged",
        f"evt.stepFailed: {why}",
        "undone tag",
        f"undone: evt.stepFailed: {why}",
    ]
    assert (failed["state"], job["state"], job["attempt"]) == ("FAILED", "FAILED", 1)
