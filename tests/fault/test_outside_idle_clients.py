"""Idle clients: connections that say nothing, or not all, neither use up the descriptors nor fill the log."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.system import System
from tests.fault.world import NO_GIT
from tests.processes import Processes, Through
from tests.servers.run import Run
from tests.support import NO_TLS, eventually

FILES = 256
"""Descriptors that the node may have."""
FEW = 'ulimit -n "$1" && shift && exec "$@"'
LOG = 1_000_000
"""Bytes that it may write meanwhile."""
CLOSED_WITHIN = 45.0
"""Seconds until whoever has not said what he wants is gone: the time for a head (10 s), with slack."""
SERVES_WITHIN = 60.0
"""Seconds until somebody else is served: those who hold every place have half a minute for what they promised."""
HEAD = b"POST /apps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-"
WORDS = {"nothing": b"", "half a head": HEAD, "no body": HEAD + b"Length: 60\r\n\r\n"}


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have as many descriptors as all of these connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_idle_connections_do_not_stop_the_service(
    server_run: Run, tmp_path: Path, postgres_url: str, rabbitmq_url: str, scale: Callable[[int, int], int]
) -> None:
    """Three sorts of them, at a node each at the same time: nearly all of it is waiting."""
    processes = Processes(Through(server_run, "bash", "-c", FEW, "bash", str(FILES)), tmp_path)
    system = System(processes, tmp_path, postgres_url, rabbitmq_url)
    system.upgrade()
    try:
        system.worker(**NO_GIT)
        nodes = {words: system.node(port=None, **NO_GIT) for words in WORDS}
        await asyncio.gather(*(system.ready(url, deadline=60) for _, url in nodes.values()))
        async with asyncio.TaskGroup() as group:
            for words, (_, url) in nodes.items():
                group.create_task(_served_beside(system, url, words, scale(300, 800)))
        for node, _ in nodes.values():
            assert node.returncode is None, node.log_tail()
            assert node.log_path.stat().st_size < LOG, node.log_tail(5)
    finally:
        processes.close()


async def _served_beside(system: System, url: str, words: str, count: int) -> None:
    """Others are served beside so many connections that say these words, which are all closed then."""
    names = [f"beside-{words}-{n}".replace(" ", "-") for n in range(5)]
    with _held(url, count, WORDS[words]) as held:
        for name in names:
            await eventually(partial(_started, url, name), deadline=SERVES_WITHIN, every=0.5, message=words)
        await eventually(lambda: _all_closed(held), deadline=CLOSED_WITHIN, every=0.5, message=f"{words}: all closed")
    assert (await system.all_ended(names, deadline=30)).named(names[0])


@contextmanager
def _held(url: str, count: int, words: bytes) -> Iterator[list[socket.socket]]:
    """So many connections on which that is said, and nothing more; one that is refused counts as closed."""
    place = urlsplit(url)
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            with suppress(OSError):
                held.append(socket.create_connection((place.hostname, place.port), timeout=5))
                held[-1].sendall(words)
        for one in held:
            one.setblocking(False)
        yield held
    finally:
        for one in held:
            one.close()


async def _started(url: str, name: str) -> bool:
    """Whether the app is there, by this request or by one before whose answer was lost."""
    try:
        async with httpx.AsyncClient(timeout=5, trust_env=False, verify=NO_TLS) as http:
            answer = await http.post(f"{url}/apps", json={"appName": name, "createdBy": "ada"})
    except httpx.HTTPError as error:
        raise AssertionError(f"{name}: {error!r}") from None
    return answer.status_code in (200, 409)


def _all_closed(held: Sequence[socket.socket]) -> bool:
    open_still = [one for one in held if not _is_closed(one)]
    assert not open_still, f"{len(open_still)} of {len(held)} are open"
    return True


def _is_closed(one: socket.socket) -> bool:
    """Whether the other side has ended it. What it says before that is read and passed over."""
    try:
        while one.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
