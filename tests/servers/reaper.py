"""Which processes and folders must not outlive a test run, even one that was killed?

Runs as a script beside the tests and reads its standard input: `watch PID`, `forget PID`, `remove FOLDER`. When the
input ends, because the test run ended in whatever way, everything that is still listed goes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """`pid`, its session and all their descendants, parents first.

    A server's children often lead sessions of their own (PostgreSQL's do), so that a signal to the group misses them.
    """
    table = {entry[0]: entry for entry in _process_table()}
    found = [pid] if pid in table else []
    found += [p for p, _, group, session in table.values() if pid in (group, session) and p != pid]
    for parent in found:  # grows while it runs
        found += [p for p, mother, _, _ in table.values() if mother == parent and p not in found]
    return found


def born(pid: int) -> str:
    """When the process started, in the kernel's ticks; empty when there is none. Tells a reused pid apart."""
    fields = stat_of(pid)
    return fields[19] if fields else ""


def signal_family(pid: int, number: signal.Signals) -> list[int]:
    """Sends the signal to the whole family and returns the pids that it reached."""
    reached = []
    for member in family(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(member, number)
            reached.append(member)
    return reached


def freeze_family(pid: int, *, deadline: float = 2.0) -> None:
    """SIGSTOP to the family; returns when the last thread has stopped, which takes a while on a busy machine."""
    frozen, end = signal_family(pid, signal.SIGSTOP), time.monotonic() + deadline
    while not all(map(_stopped, frozen)) and time.monotonic() < end:
        time.sleep(0.001)


def _stopped(pid: int) -> bool:
    try:
        stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True  # it has ended
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)


def kill_family(pid: int, *, deadline: float = 10.0) -> None:
    """SIGKILL to the family again and again until nobody is left, for at most `deadline` seconds."""
    end = time.monotonic() + deadline
    while signal_family(pid, signal.SIGKILL) and time.monotonic() < end:
        time.sleep(0.01)


def _process_table() -> Iterable[tuple[int, int, int, int]]:
    """(pid, parent, group, session) of every process that is not a zombie. Linux only; elsewhere empty."""
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    for pid in map(int, filter(str.isdigit, names)):
        fields = stat_of(pid)
        if fields and fields[0] not in "ZX":
            yield pid, int(fields[1]), int(fields[2]), int(fields[3])


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (proc(5)); the command's name before them may hold anything.

    By plain calls: it is asked of all processes of the machine whenever one is ended.
    """
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(file, 4096).rpartition(b")")[2].decode().split()
    except OSError:
        return []
    finally:
        os.close(file)


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[int, str] = {}
    folders: list[str] = []
    for line in sys.stdin:
        verb, _, what = line.rstrip("\n").partition(" ")
        if verb == "watch":
            watched[int(what)] = born(int(what))
        elif verb == "forget":
            watched.pop(int(what), None)
        elif verb == "remove":
            folders.append(what)
    for pid, start in watched.items():
        if start == born(pid) or not born(pid):
            kill_family(pid)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main()
