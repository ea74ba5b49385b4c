"""Does a reader that stalls stop nothing but the log, and is what got lost said?"""

from __future__ import annotations

import json
import os
import re
import subprocess
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
    pipe.read_until(b"from a handler\n")


def test_one_line_that_is_lost_is_one() -> None:
    assert sentence(1).startswith("1 log line dropped")
    assert sentence(2).startswith("2 log lines dropped")


BEGIN = """
import asyncio, logging, os, sys, time
from orchestrix.config.settings import LogSettings
from orchestrix.telemetry import logs, sinks
sinks.install()
logs.setup(LogSettings(), node="n1", role="node")
log = logging.getLogger("orchestrix.test")
"""
STALLED = (
    BEGIN
    + """
async def main():
    longest = 0.0
    for number in range(3000):
        before = time.monotonic()
        log.error("%d %s", number, "x" * 3000)
        print("a handler prints", "y" * 3000)
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - before)
    sys.exit(0 if longest < 5 else 1)
asyncio.run(main())
"""
)


def ran(script: str, *, read: bool = True) -> tuple[int, str]:
    """The exit code, and what was written; a process whose output nobody reads has to end by itself."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            if not read:
                return process.wait(30), ""
            said = process.communicate(timeout=30)[0]
            return process.returncode, said.decode()
        finally:
            process.kill()


def test_a_process_whose_output_nobody_reads_goes_on_and_ends() -> None:
    assert ran(STALLED, read=False) == (0, "")


def test_what_was_said_last_is_written_before_the_end() -> None:
    code, said = ran(BEGIN + "\nfor number in range(5000): log.info('line %d', number)\nprint('end', end='')\n")
    assert code == 0
    assert [json.loads(line)["message"] for line in said.splitlines()[:-1]] == [f"line {n}" for n in range(5000)]
    assert said.endswith("end")


FORKED = (
    BEGIN
    + """
import threading, warnings
warnings.simplefilter("ignore")
for number in range(100): log.info("parent %d", number)
print("begun", end="")
child = os.fork()
if not child:
    log.info("child")
    print("child prints", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print()
log.info("after")
"""
)


def test_a_child_made_by_fork_has_a_log_of_its_own_and_repeats_nothing() -> None:
    code, said = ran(FORKED)
    assert code == 0
    told = [json.loads(line)["message"] for line in said.splitlines() if line.startswith("{")]
    assert sorted(told) == sorted([*(f"parent {n}" for n in range(100)), "child", "after"])
    assert said.count("child prints") == said.count("begun") == 1


def test_the_loss_is_a_line_of_the_log(pipe: Pipe) -> None:
    script = BEGIN + "\nfor _ in range(300): log.info('x' * 65536)\nsys.stderr.write('full')\nsys.stderr.flush()\n"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stderr.read(4) == b"full"
            lines = [json.loads(line) for line in process.stdout]
        finally:
            process.kill()
    [loss] = [line for line in lines if "dropped here" in line["message"]]
    assert (loss["level"], loss["logger"], loss["node_id"]) == ("warning", "orchestrix.log", "n1")
    assert int(loss["message"].split()[0]) + len(lines) - 1 == 300


def test_threads_that_print_at_once_do_not_mix_their_lines() -> None:
    script = BEGIN + (
        "\nimport threading\n"
        "def say(name):\n"
        "    for _ in range(500): print(name * 50)\n"
        "threads = [threading.Thread(target=say, args=(name,)) for name in 'abcd']\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
    )
    _, said = ran(script)
    assert {len(set(line)) for line in said.splitlines() if line} == {1}


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
    pipe.read_until(b"ready\n")
    confirm()


def test_the_thread_keeps_no_process_alive() -> None:
    sink = Sink(os.open(os.devnull, os.O_WRONLY))
    sink.put(b"x\n")
    assert sink.flush(10)
    assert all(one.daemon for one in threading.enumerate() if one.name == "orchestrix-log")
