"""Does a newcomer get from nothing to a completed app with one command?"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.plain_pika import PikaWorker, succeed
from tests.acceptance.system import AGAIN, Client, System, create_all
from tests.processes import Process, Processes
from tests.support import NO_TLS, eventually, free_port, holds

SLACK = 3
READY_WITHIN_S = 3.0
"""What `dev` promises."""
SHORT = {"ORCHESTRIX_ORCHESTRATOR__CLAIM": "2"}
"""What a killed `dev` had in hand is taken up after 2 s instead of 15."""


def start_dev(processes: Processes, folder: Path, **env: str) -> tuple[Process, dict[str, str]]:
    """`orchestrix dev` in `folder`, ready; the process and its dev.json."""
    process = processes.spawn("dev", "--port", str(free_port()), cwd=folder, env=env)
    process.wait_for_line_sync(r"Ready in", deadline=30)
    described: dict[str, str] = json.loads((folder / ".orchestrix" / "dev.json").read_text())
    return process, described


@pytest.mark.req("DC-1", "S3-1")
async def test_dev_is_ready_in_seconds_and_completes_the_first_app(programs: Processes, tmp_path: Path) -> None:
    begun = time.monotonic()
    _, dev = start_dev(programs, tmp_path)
    assert time.monotonic() - begun < 3 * SLACK
    async with Client(dev["apiUrl"]) as client:
        begun = time.monotonic()
        app = await client.created("billing")
        assert app["state"] == "APP_INITIATED"
        assert app["version"] == 1
        done = await client.completed(app["id"], deadline=2 * SLACK)
        assert time.monotonic() - begun < 2 * SLACK
        assert done["version"] == 4
        rows = await client.history(app["id"])
    assert [(row["fromState"], row["toState"]) for row in rows] == [
        (None, "APP_INITIATED"),
        ("APP_INITIATED", "GIT_REPO_CREATED"),
        ("GIT_REPO_CREATED", "REGISTERING"),
        ("REGISTERING", "COMPLETED"),
    ]
    clone = tmp_path / "clone"
    repository = tmp_path / ".orchestrix" / "repos" / f"{app['id']}.git"
    subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True, capture_output=True)
    log = subprocess.run(["git", "log", "--oneline"], cwd=clone, check=True, capture_output=True, text=True)
    assert len(log.stdout.splitlines()) == 1


async def test_a_folders_name_is_no_part_of_a_url_and_what_is_in_it_is_the_owners(
    processes: Processes, tmp_path: Path
) -> None:
    folder, twin = tmp_path / "a%20b?c#d é мой сад", tmp_path / "a b?c#d é мой сад"
    for one in (folder, twin):
        (one / ".orchestrix" / "repos" / "old.git").mkdir(parents=True)
    (folder / ".orchestrix" / "orchestrix.db").touch(0o644)
    os.chmod(folder / ".orchestrix", 0o755)
    _, dev = start_dev(processes, folder)
    async with Client(dev["apiUrl"]) as client:
        app = await client.created("billing")
        await client.completed(app["id"], deadline=2 * SLACK)
    inside = folder / ".orchestrix"
    assert (inside / "orchestrix.db").stat().st_size > 0
    assert not list(tmp_path.rglob("*.db*")) or {one.parent for one in tmp_path.rglob("*.db*")} == {inside}
    found = {str(one.relative_to(inside)): one.stat().st_mode & 0o777 for one in (inside, *inside.iterdir())}
    assert {name: mode for name, mode in found.items() if mode & 0o077} == {}
    repositories = [inside / "repos" / name for name in ("old.git", f"{app['id']}.git")]
    assert [one.stat().st_mode & 0o777 for one in repositories] == [0o700, 0o700]
    for command in (("db", "check"), ("doctor",), ("apps", "list")):
        done = processes.run(*command, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "billing" in done.stdout
    worker = processes.spawn("worker", cwd=folder)
    await worker.wait_for_line("ready")
    worker.terminate()


async def test_dev_json_tells_the_others_and_goes_with_a_clean_stop(processes: Processes, tmp_path: Path) -> None:
    process, dev = start_dev(processes, tmp_path)
    path = tmp_path / ".orchestrix" / "dev.json"
    assert set(dev) == {"pid", "startedAt", "databaseUrl", "brokerUrl", "apiUrl"}
    assert path.stat().st_mode & 0o777 == 0o600
    second = processes.run("dev", cwd=tmp_path)
    assert second.returncode == 4, second.stderr
    process.terminate()
    assert await process.exited(deadline=15) == 0
    assert not path.exists()


async def test_a_second_terminals_worker_joins_the_embedded_broker(processes: Processes, tmp_path: Path) -> None:
    _, dev = start_dev(processes, tmp_path)
    worker = processes.spawn("worker", cwd=tmp_path, env={"ORCHESTRIX_GIT__PROVIDER": "simulated"})
    await worker.wait_for_line("cmd.createGitRepo")
    async with Client(dev["apiUrl"]) as client:
        apps = [await client.created(f"shared-{n}") for n in range(20)]
        for app in apps:
            await client.completed(app["id"], deadline=60)
    made = {app["id"] for app in apps if (tmp_path / ".orchestrix" / "repos" / f"{app['id']}.git").exists()}
    assert 0 < len(made) < len(apps), "both workers had their share"


async def test_a_plain_pika_worker_joins_the_embedded_broker(processes: Processes, tmp_path: Path) -> None:
    _, dev = start_dev(processes, tmp_path)
    async with Client(dev["apiUrl"]) as client:
        with PikaWorker(dev["brokerUrl"], succeed) as worker:
            for n in range(30):
                app = await client.created(f"pika-{n}")
                await client.completed(app["id"])
            assert worker.commands, "the foreign worker had its share"


async def test_dev_remembers_its_apps_over_a_kill(processes: Processes, tmp_path: Path) -> None:
    slow = {**SHORT, "ORCHESTRIX_GIT__PROVIDER": "simulated", "ORCHESTRIX_WORKER__CONCURRENCY": "40"}
    process, dev = start_dev(processes, tmp_path, **slow)
    system = System(processes, tmp_path, dev["databaseUrl"], dev["brokerUrl"])
    names = [f"survivor-{n}" for n in range(200)]
    async with Client(dev["apiUrl"]) as client:
        assert await create_all([client], names) == names
    await system.some_done(20)
    process.kill9()
    done = sum(app.state == "COMPLETED" for app in (await system.ledger()).apps)
    assert done < len(names), "it is in the middle of its work"
    start_dev(processes, tmp_path, **slow)
    ledger = await system.all_ended(names, deadline=AGAIN)
    ledger.check_completed(names)


async def test_dev_started_anew_at_once_is_ready_as_soon_as_ever(processes: Processes, tmp_path: Path) -> None:
    slow = {**SHORT, "ORCHESTRIX_GIT__PROVIDER": "simulated", "ORCHESTRIX_LOG__LEVEL": "info"}
    process, dev = start_dev(processes, tmp_path, **slow)
    async with Client(dev["apiUrl"]) as client:
        app = await client.created("caught")
    process.kill9()
    process, dev = start_dev(processes, tmp_path, **slow)
    assert "broker is new or was reset" in process.log()
    assert "for another node to redispatch" not in process.log(), "nobody else has to tell the broker first"
    assert _seconds_to_ready(process) < 3 * READY_WITHIN_S
    async with Client(dev["apiUrl"]) as client:
        await client.completed(app["id"])


def _seconds_to_ready(dev: Process) -> float:
    found = re.search(r"Ready in ([0-9.]+)s", dev.log())
    assert found
    return float(found[1])


async def test_a_connection_that_idles_is_not_closed_before_its_client_does_it(
    processes: Processes, tmp_path: Path
) -> None:
    """Clients keep theirs for 5 s and load balancers for a minute: a server that is first loses their next request."""
    _, dev = start_dev(processes, tmp_path)
    address = urlsplit(dev["apiUrl"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert head.split()[1] == b"200"
    assert length
    await reader.readexactly(int(length[1]))
    await holds(lambda: not reader.at_eof(), during=7)
    writer.close()


async def test_the_cli_creates_waits_and_shows(processes: Processes, tmp_path: Path) -> None:
    start_dev(processes, tmp_path)
    created = await processes.run_async("apps", "create", "ledger", "--by", "ada", "--wait", "-o", "json", cwd=tmp_path)
    assert created.returncode == 0, created.stderr
    app = json.loads(created.stdout)
    assert app["state"] == "COMPLETED"
    again = await processes.run_async("apps", "create", "ledger", "--by", "ada", cwd=tmp_path)
    assert again.returncode == 4
    assert "Traceback" not in again.stderr
    shown = await processes.run_async("apps", "history", str(app["id"]), cwd=tmp_path)
    assert "GIT_REPO_CREATED" in shown.stdout
    missing = await processes.run_async("apps", "show", "999999", cwd=tmp_path)
    assert missing.returncode == 3


async def test_serve_and_worker_without_settings_say_what_to_do(processes: Processes, tmp_path: Path) -> None:
    for command in ("serve", "worker"):
        done = await processes.run_async(command, cwd=tmp_path)
        assert done.returncode == 2
        assert "ORCHESTRIX_" in done.stderr
        assert "Traceback" not in done.stderr
    stale = {"pid": 2**22 - 3, "startedAt": "2026-01-01T00:00:00.000000Z", "databaseUrl": "sqlite+aiosqlite:////x"}
    (tmp_path / ".orchestrix").mkdir()
    (tmp_path / ".orchestrix" / "dev.json").write_text(
        json.dumps({**stale, "brokerUrl": "amqp://127.0.0.1:1/", "apiUrl": "http://127.0.0.1:1"})
    )
    assert (await processes.run_async("worker", cwd=tmp_path)).returncode == 5


async def test_dev_serves_health_and_documents(processes: Processes, tmp_path: Path) -> None:
    _, dev = start_dev(processes, tmp_path)
    async with httpx.AsyncClient(base_url=dev["apiUrl"], trust_env=False, verify=NO_TLS) as http:
        await eventually(lambda: _ok(http, "/health/ready"), deadline=10)
        for path in ("/health", "/health/live", "/health/startup", "/openapi.json", "/docs"):
            assert (await http.get(path)).status_code == 200, path
        health = (await http.get("/health")).json()
    assert health["status"] == "healthy"
    assert all(set(check) >= {"component", "isHealthy"} for check in health["checks"])
    assert os.path.exists(tmp_path / ".orchestrix" / "orchestrix.db")


async def _ok(http: httpx.AsyncClient, path: str) -> bool:
    return (await http.get(path)).status_code == 200


@pytest.mark.req("S3-45")
async def test_one_saga_can_be_followed_in_the_logs_by_its_correlation_id(processes: Processes, tmp_path: Path) -> None:
    process, dev = start_dev(processes, tmp_path, ORCHESTRIX_LOG__LEVEL="debug", ORCHESTRIX_LOG__FORMAT="json")
    async with Client(dev["apiUrl"]) as client:
        for name in ("billing", "other"):
            answer = await client.http.post(
                "/apps", json={"appName": name, "createdBy": "ada"}, headers={"X-Correlation-ID": f"follow-{name}"}
            )
            await client.completed(answer.json()["id"])
    lines = [json.loads(line) for line in process.log().splitlines() if line.startswith("{")]
    told = [line for line in lines if line.get("correlation_id") == "follow-billing"]
    for what in (
        "POST /apps",
        "sent cmd.createGitRepo",
        "cmd.createGitRepo is done",
        "sent cmd.registerApp",
        "cmd.registerApp is done",
    ):
        assert [line["level"] for line in told if what in line["message"]] == ["debug"], (what, told)
    at_info = [line for line in told if line["level"] == "info"]
    assert [(line["event"], line.get("step"), line["state"]) for line in at_info] == [
        ("saga.started", None, "APP_INITIATED"),
        ("saga.step.succeeded", "createGitRepo", "REGISTERING"),
        ("saga.step.succeeded", "registerApp", "COMPLETED"),
        ("saga.ended", None, "COMPLETED"),
    ]
    assert {line["trace_id"] for line in at_info} == {at_info[0]["trace_id"]}
