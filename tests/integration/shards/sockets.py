"""How does a test talk to a node by ZeroMQ, as a plain client, and as one that means no good?"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import zmq
import zmq.asyncio

SERVICE = "orders"


class PlainClient:
    """A DEALER that registers, sends heartbeats with what it was assigned last, and reads what is pushed."""

    def __init__(self, *endpoints: str, worker_id: str = "w-1", count: int = 10, identity: bytes | None = None) -> None:
        self.worker_id, self.count, self.sent = worker_id, count, 0
        self.shards: list[int] | None = None
        self.errors: list[str] = []
        self.answers: list[list[int]] = []
        self.socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.LINGER, 0)
        if identity is not None:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        for one in endpoints:
            self.socket.connect(one)
        self._tasks = [asyncio.create_task(self._read())]

    async def send(self, *frames: bytes) -> None:
        self.sent += 1
        await self.socket.send_multipart(frames)

    async def say(self, kind: str, **data: Any) -> None:
        about = {"serviceName": SERVICE, "workerId": self.worker_id, **data}
        await self.send(json.dumps({"type": kind, "data": about}).encode())

    async def register(self) -> None:
        await self.say("register", maxShardCount=self.count)

    async def beat(self, shards: Sequence[int] | None = None) -> None:
        running = self.shards or [] if shards is None else shards
        await self.say("heartbeat", maxShardCount=self.count, assignedShards=list(running))

    def beats(self, every_s: float) -> None:
        """From now on."""
        self._tasks.append(asyncio.create_task(self._beats(every_s)))

    async def _beats(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.beat()

    async def _read(self) -> None:
        while True:
            (body,) = await self.socket.recv_multipart()
            got = json.loads(body)
            assert got["type"] == "assignment"
            self.shards = got["data"]["assignedShards"]
            self.answers.append(got["data"]["assignedShards"])
            if "error" in got["data"]:
                self.errors.append(got["data"]["error"])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.socket.close(linger=0)


GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""ZMTP 3.0, as RFC 23 has it: signature, version, mechanism, filler."""


def shaken(endpoint: str, identity: bytes = b"") -> socket.socket:
    """A connection after the handshake of ZMTP, which the test then writes to byte by byte; it is not renewed."""
    ready = b"\x05READY" + b"\x0bSocket-Type" + b"\x00\x00\x00\x06DEALER"
    ready += b"\x08Identity" + len(identity).to_bytes(4, "big") + identity
    where = urlsplit(endpoint)
    assert where.hostname is not None
    assert where.port is not None
    made = socket.create_connection((where.hostname, where.port), timeout=10)
    made.sendall(GREETING)
    _read(made, 64)
    made.sendall(b"\x04" + bytes([len(ready)]) + ready)
    _read(made, _read(made, 2)[1])
    return made


def _read(made: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = made.recv(count - len(found))
        assert part, "the node has closed the connection"
        found += part
    return found


def taken_of_a_frame(made: socket.socket, size: int) -> int:
    """How much of a frame of that size the node and the system took before the connection was closed, if it was."""
    sent = 0
    try:
        made.sendall(b"\x02" + size.to_bytes(8, "big"))
        part = bytes(64 * 1024)
        while sent < size:
            sent += made.send(part[: size - sent])
    except (ConnectionError, TimeoutError):
        return sent
    return sent
