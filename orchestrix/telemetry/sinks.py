"""Log sinks: threads that write a process's output, so that a stalled reader stops nothing but its own lines.

`install` replaces stdout and stderr by a `Stream` each: log lines and prints go into a bounded queue, and a
thread of its own writes them to the descriptor. What does not fit into the queue is counted, and the count is written
as soon as the reader continues. A child made by fork has no thread and nothing queued: it writes directly.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO

from orchestrix import clock
from orchestrix.quantities import counted
from orchestrix.telemetry.metrics.catalogue import LOG_LINES_LOST, SLOW_READER
from orchestrix.telemetry.metrics.instruments import Values, counter

MAX_QUEUED_LINES: Final = 20_000
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""What a sink holds at most, including what it is writing just now."""
WRITE_CHUNK_BYTES: Final = 64 * 1024
"""Bytes of one write."""
FLUSH_TIMEOUT_S: Final = 2.0
"""Seconds that the end of the process waits for what is still queued."""


def sentence(lost: int) -> str:
    """The line that replaces so many lost lines."""
    return f"{counted(lost, 'log line')} dropped here: the log is not read fast enough"


class Sink:
    """A bounded queue in front of a descriptor, and the thread that empties it. `put` never blocks."""

    def __init__(self, descriptor: int, max_lines: int = MAX_QUEUED_LINES, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self.notice: Callable[[int], str] = sentence
        """Makes the line that says how many were lost."""
        self._descriptor = descriptor
        self._max_lines, self._max_bytes = max_lines, max_bytes
        self._thread: threading.Thread | None = None
        self._direct = False
        self.error: OSError | None = None
        """What the last write failed with; None if it went well."""
        self.lost = 0
        """How many lines were lost, since the start."""
        self._empty()

    def put(self, line: bytes) -> None:
        """Queues `line`, which has its end; counts it as lost where the queue is full."""
        if self._direct:
            with suppress(OSError):
                _write(self._descriptor, line)
            return
        with self._changed:
            if self._lines >= self._max_lines or self._bytes + len(line) > self._max_bytes:
                self._lost += 1
                self.lost += 1
                return
            self._queue.append(line)
            self._lines += 1
            self._bytes += len(line)
            self._run()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` seconds until all is written; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines, timeout_s)

    def forked(self) -> None:
        """In a child made by fork: what is queued is the parent's to write, and its thread is not here."""
        self._direct = True
        self._empty()

    def _empty(self) -> None:
        # Reentrant: a signal's handler may log while this thread is inside.
        self._changed = threading.Condition(threading.RLock())
        self._queue: list[bytes] = []
        self._lines = self._bytes = self._lost = 0

    def _run(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="orchestrix-log", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                lines, self._queue = self._queue, []
                lost, self._lost = self._lost, 0
            unwritten = self._written(lines, lost)
            with self._changed:
                self._lost += unwritten
                self.lost += max(0, unwritten - lost)
                self._lines -= len(lines)
                self._bytes -= sum(map(len, lines))
                self._changed.notify_all()

    def _written(self, lines: list[bytes], lost: int) -> int:
        """Writes them, then how many were lost behind them; how many are lost now."""
        output = [*lines, _loss_line(self.notice, lost)] if lost else lines
        for begin, end in _pieces(output):
            try:
                _write(self._descriptor, b"".join(output[begin:end]))
            except OSError as error:  # a closed pipe, a full disk
                self.error = error
                return len(lines) - min(begin, len(lines)) + lost
        self.error = None
        return 0


def _pieces(lines: list[bytes]) -> list[tuple[int, int]]:
    """Which lines are written at once."""
    pieces, begin, size = [], 0, 0
    for place, line in enumerate(lines):
        size += len(line)
        if size >= WRITE_CHUNK_BYTES or place == len(lines) - 1:
            pieces.append((begin, place + 1))
            begin, size = place + 1, 0
    return pieces


def _loss_line(make: Callable[[int], str], lost: int) -> bytes:
    try:
        return (make(lost) + "\n").encode("utf-8", "backslashreplace")
    except Exception:  # a formatter of another library's
        return (sentence(lost) + "\n").encode()


def _write(descriptor: int, content: bytes) -> None:
    """All of it, however long it takes. Raises `OSError`."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made it non-blocking
            waiter = select.poll()
            waiter.register(descriptor, select.POLLOUT)
            waiter.poll()


class _PartialLine(threading.local):
    """The line that a thread has not ended yet, in the parts that it was written in: threads do not mix theirs."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def add(self, part: str) -> int:
        """How many characters the line has now."""
        self._parts.append(part)
        self._size += len(part)
        return self._size

    def taken(self) -> str:
        """The line so far; the next one begins."""
        parts, self._parts, self._size = self._parts, [], 0
        return "".join(parts)


class Stream(io.TextIOBase):
    """Replaces stdout or stderr: whole lines go to the sink, the rest when it is flushed or is as much as one
    write. Never blocks.
    """

    def __init__(self, raw_stream: TextIO, sink: Sink) -> None:
        super().__init__()
        self.sink = sink
        self._raw_stream = raw_stream
        self._begin()

    def forked(self) -> None:
        """In a child made by fork: what the parent has begun to write is the parent's."""
        self._begin()
        self.sink.forked()

    def _begin(self) -> None:
        self._begun = _PartialLine()

    def write(self, text: str, /) -> int:
        """Queues what ends a line, and what has no end for too long."""
        whole, end, rest = text.rpartition("\n")
        if end:
            self._put(self._begun.taken() + whole + end)
        if rest and self._begun.add(rest) >= WRITE_CHUNK_BYTES:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Queues what this thread has not ended yet, too; waits for nothing."""
        self._put(self._begun.taken())

    def _put(self, text: str) -> None:
        if text:
            self.sink.put(text.encode(self.encoding, "backslashreplace"))

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._raw_stream.encoding or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def buffer(self) -> Any:
        """For writers of bytes: these may block."""
        return self._raw_stream.buffer

    def isatty(self) -> bool:
        return self._raw_stream.isatty()

    def fileno(self) -> int:
        return self._raw_stream.fileno()

    def writable(self) -> bool:
        return True


_streams: list[Stream] = []


def install() -> None:
    """From now on nothing in this process blocks on the reader of stdout and stderr.

    What has no descriptor, as in tests, stays as it is: it cannot stall.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Stream) and (descriptor := _descriptor(stream)) is not None:
            stream.flush()
            _streams.append(Stream(stream, Sink(descriptor)))
            setattr(sys, name, _streams[-1])


def flush(timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
    """Waits up to `timeout_s` seconds in all until everything is written; whether it is."""
    end = clock.monotonic() + timeout_s
    for stream in _streams:
        stream.flush()
    unwritten = [stream for stream in _streams if not stream.sink.flush(max(0.0, end - clock.monotonic()))]
    return not unwritten


def confirm(timeout_s: float = FLUSH_TIMEOUT_S) -> None:
    """Waits up to `timeout_s` seconds until what was printed is written. Raises `OSError` if that fails."""
    sys.stdout.flush()
    if isinstance(sys.stdout, Stream):
        sys.stdout.sink.flush(timeout_s)
        if (error := sys.stdout.sink.error) is not None:
            raise error


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _lost_lines() -> Values:
    return {(SLOW_READER,): sum(stream.sink.lost for stream in _streams)}


counter(LOG_LINES_LOST).watch(_lost_lines)


def _forked() -> None:
    for stream in _streams:
        stream.forked()


if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_forked)
atexit.register(flush)
