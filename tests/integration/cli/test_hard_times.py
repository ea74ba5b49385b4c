"""Does a real `dev` go on with a reader that stalls, with few descriptors, and with strangers at its door?"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.processes import ORCHESTRIX, Processes
from tests.support import eventually_sync, free_port

APP = {"createdBy": "ada"}


@contextmanager
def piped(folder: Path, shell: str = "", **env: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`orchestrix dev` whose output goes to one pipe that nobody reads, and its URL."""
    port = free_port()
    line = f"{shell} exec {ORCHESTRIX} dev --port {port}"
    own = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **env}
    with subprocess.Popen(
        ["/bin/sh", "-c", line], cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            eventually_sync(lambda: answers(f"{url}/health/ready"), deadline=30, message="dev is ready")
            yield process, url
        finally:
            process.kill()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def completed(url: str, name: str) -> None:
    """An app is created, and goes to its end."""
    made = httpx.post(f"{url}/apps", json={**APP, "appName": name}, timeout=10)
    assert made.status_code == 200, made.text
    path = f"{url}/apps/{made.json()['id']}"
    eventually_sync(lambda: httpx.get(path, timeout=10).json()["state"] == "COMPLETED", deadline=30)


def test_a_reader_that_stalls_stops_nothing_but_its_log(tmp_path: Path) -> None:
    with piped(tmp_path, ORCHESTRIX_LOG__LEVEL="debug") as (process, url):
        long = "x" * 4000
        for number in range(100):  # half a megabyte of log, eight times what a pipe takes
            assert httpx.get(f"{url}/nowhere/{long}{number}", timeout=5).status_code == 404
        assert answers(f"{url}/health/live")
        completed(url, "billing")
        process.terminate()
        assert process.wait(30) == 0


def test_idle_connections_leave_descriptors_for_everything_else(tmp_path: Path) -> None:
    with piped(tmp_path, "ulimit -n 128;") as (process, url), ExitStack() as held:
        port = int(url.rpartition(":")[2])
        for _ in range(300):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        for number in range(3):
            completed(url, f"billing-{number}")
        assert answers(f"{url}/health/live")
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None
        said = process.stdout.read()
    assert len(said) < 20_000, said.decode()
    assert b"Traceback" not in said


def test_pages_of_other_sites_steer_no_dev(processes: Processes, tmp_path: Path) -> None:
    dev = processes.spawn("dev", "--port", str(free_port()), env={"ORCHESTRIX_HTTP__ALLOWED_HOSTS": "dev.example"})
    dev.wait_for_line_sync(r"^Ready in")
    found = json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())
    with httpx.Client(base_url=found["apiUrl"], timeout=10) as client:
        assert client.get("/apps", headers={"Host": "evil.example"}).status_code == 421
        assert client.get("/apps", headers={"Host": "dev.example:1"}).status_code == 200
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            answer = client.post("/cluster/nodes/x/drain", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
        assert client.post("/cluster/nodes/x/drain").status_code == 404
        assert client.post("/apps", json={**APP, "appName": "a"}, headers={"Origin": found["apiUrl"]}).is_success


def test_where_there_are_tokens_the_host_is_anybodys(processes: Processes, tmp_path: Path) -> None:
    tokens = {"ORCHESTRIX_API__TOKENS": "ada:the-secret-of-ada"}
    dev = processes.spawn("dev", "--port", str(free_port()), env=tokens)
    dev.wait_for_line_sync(r"^Ready in")
    url = json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())["apiUrl"]
    ada = {"Authorization": "Bearer the-secret-of-ada", "Host": "api.example"}
    assert httpx.get(f"{url}/docs", headers=ada).status_code == 200
    assert httpx.get(f"{url}/docs").status_code == httpx.get(f"{url}/openapi.json").status_code == 401
    assert httpx.get(f"{url}/health/live", headers={"Host": "api.example"}).status_code == 200
    withheld = processes.run("apps", "list", env={"ORCHESTRIX_API__TOKEN": "the-secret-of-ada"})
    assert (withheld.returncode, "an API that you name" in withheld.stderr) == (2, True)
    named = processes.run("apps", "list", "--api", url, "--token", "the-secret-of-ada")
    assert named.returncode == 0, named.stderr
    wrong = processes.run("doctor", "--api", url, "--token", "the-secret-of-bob")
    assert wrong.returncode == 1
    assert "Invalid token" in wrong.stdout
    assert processes.run("serve", env={"ORCHESTRIX_API__TOKENS": "ada:x"}).returncode == 2


def test_an_api_that_asks_nobody_on_purpose_has_no_rule_for_hosts(processes: Processes, tmp_path: Path) -> None:
    dev = processes.spawn("dev", "--port", str(free_port()), env={"ORCHESTRIX_API__AUTH": "none"})
    dev.wait_for_line_sync(r"^Ready in")
    url = json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())["apiUrl"]
    assert httpx.get(f"{url}/apps", headers={"Host": "api.example"}).status_code == 200
    assert httpx.post(f"{url}/apps", headers={"Origin": "http://evil.example"}).status_code == 403
