"""Idle clients: connections that say nothing, or not all, neither use up the descriptors nor fill the log."""

from __future__ import annotations

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
from tests.support import eventually

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


@pytest.mark.parametrize("words", WORDS)
async def test_idle_connections_do_not_stop_the_service(
    server_run: Run, tmp_path: Path, postgres_url: str, rabbitmq_url: str, words: str, scale: Callable[[int, int], int]
) -> None:
    processes = Processes(Through(server_run, "bash", "-c", FEW, "bash", str(FILES)), tmp_path)
    system = System(processes, tmp_path, postgres_url, rabbitmq_url)
    system.upgrade()
    try:
        node, url = system.node(port=None, **NO_GIT)
        system.worker(**NO_GIT)
        await system.ready(url, deadline=60)
        names = [f"beside-{n}" for n in range(5)]
        with _held(url, scale(300, 800), WORDS[words]) as held:
            for name in names:
                await eventually(partial(_started, url, name), deadline=SERVES_WITHIN, every=0.5)
            await eventually(lambda: _all_closed(held), deadline=CLOSED_WITHIN, every=0.5, message="all are closed")
        assert (await system.all_ended(names, deadline=30)).named(names[0])
        assert node.returncode is None, node.log_tail()
        assert node.log_path.stat().st_size < LOG, node.log_tail(5)
    finally:
        processes.close()


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
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
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
