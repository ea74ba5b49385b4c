"""Does a reader that stalls stop nothing but the log, and is what got lost said?"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from orchestrix.telemetry.sinks import WRITE_CHUNK_BYTES, Sink, Stream, confirm, sentence

PIPE = 64 * 1024


@dataclass
class Pipe:
    """A pipe, and what came out of it so far."""

    reading: int
    writing: int
    got: bytes = b""

    def read_until(self, wanted: bytes) -> bytes:
        while wanted not in self.got:
            self.got += os.read(self.reading, PIPE)
        return self.got


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield Pipe(*ends)
    for end in ends:
        os.close(end)


def test_lines_are_written_in_their_order(pipe: Pipe) -> None:
    sink = Sink(pipe.writing)
    for number in range(100):
        sink.put(b"%d\n" % number)
    assert sink.flush(10)
    assert pipe.read_until(b"99\n") == b"".join(b"%d\n" % number for number in range(100))


def test_a_stalled_reader_blocks_nobody_and_hears_how_many_lines_were_lost(pipe: Pipe) -> None:
    sink, line = Sink(pipe.writing, max_lines=50), b"x" * PIPE + b"\n"
    for _ in range(200):
        sink.put(line)  # more than the pipe takes: this would never return
    assert not sink.flush(0.01)
    assert pipe.read_until(b"dropped here").count(b"\n") >= 50
    sink.put(b"again\n")
    pipe.read_until(b"again\n")
    found = re.findall(rb"(\d+) log lines? dropped", pipe.got)  # told more than once if the writer was slow
    assert sum(map(int, found)) + pipe.got.count(line) == 200


def test_what_is_queued_is_bounded_in_bytes_too(pipe: Pipe) -> None:
    sink = Sink(pipe.writing, max_bytes=10 * PIPE)
    for _ in range(100):
        sink.put(b"y" * PIPE + b"\n")
    assert pipe.read_until(b"dropped here").count(b"y" * PIPE) <= 10


def test_a_reader_that_is_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = Sink(writing)
    sink.put(b"nobody\n")
    assert sink.flush(10)
    os.close(writing)


def test_a_descriptor_that_does_not_block_gets_everything(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    sink = Sink(pipe.writing)
    for _ in range(10):
        sink.put(b"z" * PIPE + b"\n")
    sink.put(b"end\n")
    assert pipe.read_until(b"end\n").count(b"z" * PIPE) == 10


def test_a_signal_handler_may_log_while_the_queue_is_locked(pipe: Pipe) -> None:
    sink = Sink(pipe.writing)
    with sink._changed:
        sink.put(b"from a handler\n")
    assert pipe.read_until(b"from a handler\n") == b"from a handler\n"


def test_one_line_that_is_lost_is_one() -> None:
    assert sentence(1).startswith("1 log line dropped")
    assert sentence(2).startswith("2 log lines dropped")


def test_a_line_without_an_end_does_not_grow_without_bound(pipe: Pipe) -> None:
    stream = Stream(sys.__stdout__ or sys.stdout, Sink(pipe.writing))
    for _ in range(WRITE_CHUNK_BYTES - 1):
        print(".", end="", file=stream)
    assert stream.sink.flush(10)
    print("+", end="", file=stream)
    assert pipe.read_until(b"+") == b"." * (WRITE_CHUNK_BYTES - 1) + b"+"
    print("the rest", file=stream)
    print("begun", end="", file=stream)
    stream.flush()
    assert pipe.read_until(b"begun").endswith(b"+the rest\nbegun")


def test_who_has_something_to_say_hears_that_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", Stream(full, Sink(full.fileno())))
        print("ready")
        with pytest.raises(OSError, match="No space left"):
            confirm()


def test_who_has_something_to_say_waits_for_no_stalled_reader(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(sys.stdout, Sink(pipe.writing))
    monkeypatch.setattr(sys, "stdout", stream)
    stream.sink.put(b"x" * 10 * PIPE)
    print("ready")
    confirm(0.01)
    assert pipe.read_until(b"ready\n").endswith(b"xready\n")
    confirm()


def test_the_thread_keeps_no_process_alive() -> None:
    sink = Sink(os.open(os.devnull, os.O_WRONLY))
    sink.put(b"x\n")
    assert sink.flush(10)
    assert all(one.daemon for one in threading.enumerate() if one.name == "orchestrix-log")
