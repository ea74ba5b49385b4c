"""What do real processes answer at their port of metrics and health, and who may have it?"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from textwrap import dedent

import pytest

from tests.processes import Processes
from tests.support import eventually_sync, free_port

NO_BROKER = "amqp://127.0.0.1:1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def asked(port: int, path: str) -> tuple[int, dict[str, bool]]:
    """The status, and whether each component is healthy."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        return answer.status, {one["component"]: one["isHealthy"] for one in body["checks"]}


def metrics(port: int) -> str:
    """What a scrape gets."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def answers(port: int, path: str) -> int:
    """The status; 0 while nobody listens."""
    try:
        return asked(port, path)[0]
    except OSError:
        return 0


def env(folder: Path, port: int) -> dict[str, str]:
    """A process without a broker."""
    return {
        "ORCHESTRIX_BROKER_URL": NO_BROKER,
        "ORCHESTRIX_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/x.db",
        "ORCHESTRIX_METRICS__PORT": str(port),
        "ORCHESTRIX_METRICS__HOST": "127.0.0.1",
    }


@pytest.mark.parametrize("command", [["worker"], ["serve", "--roles", "orchestrator,coordinator"]])
def test_a_taken_port_ends_it_with_a_sentence(
    processes: Processes, tmp_path: Path, taken: int, command: list[str]
) -> None:
    answer = processes.run(*command, env=env(tmp_path, taken))
    (sentence, *_) = [line for line in answer.stderr.splitlines() if line.startswith("error: ")]
    assert answer.returncode == 2
    assert sentence.startswith(
        f"error: cannot listen on 127.0.0.1:{taken} (Address already in use): set ORCHESTRIX_METRICS__PORT to a free"
    )
    assert "Traceback" not in answer.stderr


def test_several_of_a_host_live_without_a_broker_and_are_not_ready(processes: Processes, tmp_path: Path) -> None:
    assert processes.run("db", "upgrade", env=env(tmp_path, 0)).returncode == 0
    ports = [free_port() for _ in range(3)]
    started = [processes.spawn("worker", env=env(tmp_path, port), name=f"w{port}") for port in ports[:2]]
    node = processes.spawn("serve", "--roles", "orchestrator,coordinator", env=env(tmp_path, ports[2]), name="node")
    for port in ports:
        eventually_sync(lambda port=port: answers(port, "/health/live") == 200, deadline=30)  # type: ignore[misc]
        eventually_sync(lambda port=port: asked(port, "/health/ready")[1].get("Database"), deadline=30)  # type: ignore[misc]
        status, found = asked(port, "/health/ready")
        assert (status, found["Broker"]) == (503, False)
        assert asked(port, "/health/live") == (200, {})
    assert asked(ports[0], "/health/ready")[1]["Consumers"] is False
    for process in (*started, node):
        process.terminate()
        assert process.exited_sync() == 0
    assert answers(ports[0], "/health/live") == 0


@pytest.mark.req("S1-53")
def test_a_worker_is_ready_while_it_reads_and_answers_while_a_function_blocks_it(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        dedent("""
        import pathlib, time
        from orchestrix import job

        @job("hog", queue="hogs")
        async def hog(context):
            pathlib.Path("hogging").touch()
            while not pathlib.Path("enough").exists():
                time.sleep(0.05)
        """)
    )
    workers = {"ORCHESTRIX_WORKERS": "mine"}
    dev = processes.spawn("dev", "--port", str(free_port()))
    dev.wait_for_line_sync("^Ready in")
    port = free_port()
    worker = processes.spawn("worker", env={"ORCHESTRIX_METRICS__PORT": str(port), **workers})
    eventually_sync(lambda: answers(port, "/health/ready") == 200, deadline=30)
    assert asked(port, "/health/ready")[1] == {"Database": True, "Broker": True, "Consumers": True}
    assert "# TYPE" in metrics(port)
    assert processes.run("jobs", "submit", "hogs", "hog").returncode == 0
    eventually_sync((tmp_path / "hogging").exists, deadline=20)
    eventually_sync(lambda: answers(port, "/health/ready") == 503, deadline=30)
    status, found = asked(port, "/health/ready")
    assert (status, found["Event loop"]) == (503, False)
    assert answers(port, "/health/live") == 200
    assert "# TYPE" in metrics(port), "its loop is blocked"
    (tmp_path / "enough").touch()
    eventually_sync(lambda: answers(port, "/health/ready") == 200, deadline=30)
    dev.kill9()
    eventually_sync(lambda: answers(port, "/health/ready") == 503, deadline=30)
    assert asked(port, "/health/ready")[1]["Consumers"] is False
    assert asked(port, "/health/live") == (200, {})
    worker.terminate()
    assert worker.exited_sync() == 0
