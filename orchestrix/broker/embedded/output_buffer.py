"""Output buffer: collects the small frames for one client into few writes, and notices a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FLUSH_AT_BYTES = 64 * 1024
HIGH_WATER_BYTES = 512 * 1024
# A client that does not read at all is not read from either: its requests would only pile up answers.
STOP_READING_AT_BYTES = 8 * 1024 * 1024


class OutputBuffer:
    """The sending half of one connection. One write per turn of the event loop, or per 64 KiB."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self._before: list[Callable[[], None]] = []
        self.sent_since_heartbeat = False
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def send(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= FLUSH_AT_BYTES:
            self._write()
        else:
            self._schedule()

    def before_flush(self, write: Callable[[], None]) -> None:
        self._before.append(write)
        self._schedule()

    def settle(self) -> None:
        """Let those who asked write their pending output now: something that must come later is about to be sent."""
        due, self._before = self._before, []
        for write in due:
            write()

    @property
    def overfull(self) -> bool:
        return self._transport.get_write_buffer_size() > STOP_READING_AT_BYTES

    def flush(self) -> None:
        self._scheduled = False
        self.settle()
        self._write()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def _write(self) -> None:
        if self._pieces and not self._transport.is_closing():
            self._transport.write(b"".join(self._pieces))
            self.sent_since_heartbeat = True
        self._pieces, self._size = [], 0
