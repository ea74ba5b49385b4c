"""Is a start either fully there or not at all when its client goes away in the middle, and does nothing leak?"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from orchestrix.bootstrap.cluster import POOL_SIZE
from tests.fault.world import NO_GIT, World
from tests.support import eventually

AT_ONCE = 40
POOL = 10


async def test_clients_go_away_in_the_middle_of_their_requests(world: World, scale: Callable[[int, int], int]) -> None:
    await world.up(env=NO_GIT)
    node, chance, count = world.nodes[0], random.Random(7), scale(200, 2000)
    pid = node.process.pid
    async with world.stream("warm", rate=50) as warm:
        await warm.more(50)
    unfinished = await _leave(node.url, [f"first-{n}" for n in range(count // 2)], chance)
    await world.all_well(warm, deadline=60)  # so that both are measured when nothing is in hand
    rss, files = _rss(pid), _files(pid)
    unfinished |= await _leave(node.url, [f"second-{n}" for n in range(count // 2)], chance)
    ledger = await world.all_well(warm, deadline=60)
    there = {app.name for app in ledger.apps}
    assert not there & unfinished, "a request that was not sent to its end has started something"
    assert len(there) > len(warm.answered), "not one of the others came through"
    await eventually(lambda: _files(pid) <= files + 5, deadline=10, message="I11: open files and sockets")
    assert _rss(pid) < rss + 20_000, "I11: memory in kB"
    await eventually(lambda: _idle(world), deadline=20, every=0.5, message="I11: no transaction is left open")


async def _leave(url: str, names: list[str], chance: random.Random) -> set[str]:
    """Begins a start for each name and resets the connection; the names whose request was not sent to its end."""
    gate = asyncio.Semaphore(AT_ONCE)
    host = urlsplit(url)

    async def one(name: str, share: float, patience: float) -> str | None:
        request = _request(name)
        sent = request[: int(len(request) * share)] if share < 1 else request
        async with gate:
            _, writer = await asyncio.open_connection(host.hostname, host.port)
            with suppress(ConnectionError):
                writer.write(sent)
                await writer.drain()
                await asyncio.sleep(patience)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        return name if len(sent) < len(request) else None

    plans = [(name, chance.choice([chance.random(), 1, 1]), chance.uniform(0, 0.02)) for name in names]
    return {name for name in await asyncio.gather(*(one(*plan) for plan in plans)) if name is not None}


def _request(name: str) -> bytes:
    body = json.dumps({"appName": name, "createdBy": "ada"}).encode()
    head = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return b"POST /apps HTTP/1.1\r\n" + head.encode() + body


async def _idle(world: World) -> bool:
    """Both processes keep no more connections than their pools hold, and none in a transaction. The node has a second
    pool, for the cluster.
    """
    rows = await world.sql(
        "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    states = [row[0] for row in rows]
    return len(states) <= 2 * POOL + POOL_SIZE and "idle in transaction" not in states


def _rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def _files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
