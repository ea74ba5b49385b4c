"""Does the executor of docs/executors.md, which needs nothing but Python, register, fail over and deregister?"""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import Popen

import httpx
import pytest

from tests.documents import ROOT, block, blocks
from tests.integration.workers.fake_admin import (
    ACCEPTS,
    DEREGISTER,
    REGISTER,
    FakeAdmin,
    answer,
    fake_admin,
    hang,
    raw,
    when,
)
from tests.servers.run import Run
from tests.support import eventually, free_port, holds

PAGE = ROOT / "docs" / "executors.md"
TIMES = "HEARTBEAT_S, TIMEOUT_S = 30.0, 3.0"
TIMEOUT_S = 1.0
INTERPRETER_S = 10.0
"""A Python may take so long to start where others keep the processors busy."""
SLACK_S = 1.0
"""What a busy machine adds to a time."""
DEADLINE_S = 30.0

Start = Callable[..., Popen[bytes]]


@pytest.fixture
async def admins() -> AsyncIterator[tuple[FakeAdmin, FakeAdmin]]:
    """Two that accept."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(fake_admin()), await stack.enter_async_context(fake_admin())


@pytest.fixture
def address() -> str:
    """Where the executor listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def start(server_run: Run, tmp_path: Path, address: str) -> Iterator[Start]:
    """Starts the page's script with these admins, and a heartbeat every so many seconds."""
    started: list[Popen[bytes]] = []

    def run(*admins: FakeAdmin, heartbeat_s: float = 30.0) -> Popen[bytes]:
        code = block(PAGE, "python", "ThreadingHTTPServer")
        assert TIMES in code
        script = tmp_path / "executor.py"
        script.write_text(code.replace(TIMES, f"HEARTBEAT_S, TIMEOUT_S = {heartbeat_s}, {TIMEOUT_S}"))
        argv = [sys.executable, "-I", str(script), "shop", address, ",".join(one.url for one in admins)]
        environment = {"PATH": os.environ["PATH"], "REGISTRY_TOKEN": "s3cret", "HTTP_PROXY": "http://127.0.0.1:1"}
        started.append(server_run.spawn(argv, env=environment, cwd=tmp_path, log=tmp_path / "executor.log"))
        return started[-1]

    yield run
    for one in started:
        server_run.kill(one)


async def ended(process: Popen[bytes]) -> int | None:
    await eventually(lambda: process.poll() is not None, deadline=DEADLINE_S)
    return process.poll()


async def test_it_registers_answers_and_deregisters_at_sigterm(
    admins: tuple[FakeAdmin, FakeAdmin], start: Start, address: str
) -> None:
    admin, other = admins
    process = start(admin, other)
    first = await admin.has(1)
    instance = first.body["instance"]
    registration = {"registryGroup": "EXECUTOR", "registryKey": "shop", "registryValue": address, "instance": instance}
    assert first.body == {**registration, "state": "UP", "weight": 1, "runs": []}
    assert first.headers["authorization"] == "Bearer s3cret"
    async with httpx.AsyncClient(base_url=address, trust_env=False) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/else")).status_code == 404
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == 0
    assert admin.paths() == [REGISTER, DEREGISTER]
    assert admin.posted[-1].body == registration
    assert other.posted == []
    start(admin, other)
    assert (await admin.has(2)).body["instance"] != instance


async def dead(admin: FakeAdmin) -> None:
    await admin.stop()


async def hanging(admin: FakeAdmin) -> None:
    admin.answers = hang


@pytest.mark.parametrize("fails", [dead, hanging])
async def test_the_second_admin_answers_within_the_timeout_of_the_first_and_is_kept(
    fails: Callable[[FakeAdmin], object], admins: tuple[FakeAdmin, FakeAdmin], start: Start, tmp_path: Path
) -> None:
    first, second = admins
    await fails(first)  # type: ignore[misc]
    loop = asyncio.get_running_loop()
    began = loop.time()
    process = start(first, second, heartbeat_s=0.1)
    posted = await second.has(1)
    tried = first.posted[0].at if first.posted else began + INTERPRETER_S
    assert posted.at - tried < TIMEOUT_S + SLACK_S
    await second.has(3)
    assert len(first.posted) <= 1, "it stays with the one that accepted"
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == 0
    assert second.paths()[-1] == DEREGISTER
    assert f"{first.url}: " in (tmp_path / "executor.log").read_text()


async def test_its_last_heartbeat_ends_before_it_deregisters(admins: tuple[FakeAdmin, FakeAdmin], start: Start) -> None:
    admin, opened = admins[0], asyncio.Event()
    admin.answers, admin.goodbye = when(opened, ACCEPTS), ACCEPTS
    process = start(admin, heartbeat_s=0.05)
    await admin.has(1)
    process.send_signal(signal.SIGTERM)
    await holds(lambda: admin.paths() == [REGISTER], during=0.3)
    opened.set()
    assert await ended(process) == 0
    assert admin.paths() == [REGISTER, DEREGISTER]


async def test_what_fails_is_logged_in_the_words_of_the_server_and_tried_again(
    admins: tuple[FakeAdmin, FakeAdmin], start: Start, tmp_path: Path
) -> None:
    admin = admins[0]
    await admin.stop()
    process, log = start(admin, heartbeat_s=0.1), tmp_path / "executor.log"
    await eventually(lambda: "Connection refused" in log.read_text(), deadline=DEADLINE_S)
    admin.first = [raw(b"noise"), raw(b""), answer(422, {"detail": "no app shop"})]
    await admin.start()
    await admin.has(5)
    for text in ("BadStatusLine", "RemoteDisconnected", "422", "no app shop"):
        assert text in log.read_text()
    assert process.poll() is None


def test_it_is_short_and_needs_the_standard_library_alone() -> None:
    code = block(PAGE, "python", "ThreadingHTTPServer")
    assert len(code.splitlines()) <= 200
    imports = [one for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Import | ast.ImportFrom)]
    names = {alias.name for one in imports for alias in one.names if isinstance(one, ast.Import)}
    names |= {one.module or "" for one in imports if isinstance(one, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_the_other_python_of_the_page_compiles() -> None:
    found = blocks(PAGE, "python")
    assert len(found) > 1, "the short executor, and others"
    for code in found:
        compile(code, str(PAGE), "exec")
