"""How does a test run the product as real processes, and see what they did?"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.servers import reaper
from tests.support import eventually, eventually_sync

ORCHESTRIX = Path(sys.executable).with_name("orchestrix")


class Spawned(Protocol):
    """What is asked of a started process: what `subprocess.Popen` answers."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class Spawner(Protocol):
    """Who starts processes, and ends them with all that they started: `Run`, for one."""

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Spawned: ...

    def complete(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]: ...

    def kill(self, process: Any) -> None: ...


class Through:
    """Starts processes through another command, which gets theirs as its last arguments."""

    def __init__(self, run: Spawner, *command: str) -> None:
        self._run = run
        self._command = command

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Spawned:
        """Like that of `Run`."""
        return self._run.spawn([*self._command, *argv], env=env, cwd=cwd, log=log)

    def complete(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Like that of `Run`."""
        return self._run.complete([*self._command, *argv], env=env, cwd=cwd, timeout=timeout)

    def kill(self, process: Any) -> None:
        """Ends the process, and the command that it went through."""
        self._run.kill(process)


class Process:
    """A running `orchestrix …`. Its output, both streams, goes to a file."""

    def __init__(
        self, run: Spawner, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        self.name = name
        self.log_path = log
        self._run = run
        self._popen = run.spawn(command, env=env, cwd=cwd, log=log)
        self._searched: tuple[str, int] | None = None

    @property
    def pid(self) -> int:
        """The process id, also after the end."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number if one ended it, or None while it runs."""
        return self._popen.poll()

    def log(self) -> str:
        """All that it printed so far."""
        return self.log_path.read_text(errors="replace")

    def log_tail(self, lines: int = 60) -> str:
        """The end of what it printed."""
        return "\n".join(self.log().splitlines()[-lines:])

    async def wait_for_line(self, pattern: str, *, deadline: float = 30.0) -> re.Match[str]:
        """The first match of the regular expression in the output. Raises AssertionError when it ends without one."""
        await eventually(lambda: self._decided(pattern), deadline=deadline, message=f"{self.name}: {pattern!r}")
        return self._found(pattern)

    def wait_for_line_sync(self, pattern: str, *, deadline: float = 30.0) -> re.Match[str]:
        """`wait_for_line` for tests without an event loop."""
        eventually_sync(lambda: self._decided(pattern), deadline=deadline, message=f"{self.name}: {pattern!r}")
        return self._found(pattern)

    async def exited(self, *, deadline: float = 30.0) -> int:
        """Waits for the end and returns the exit code."""
        await eventually(lambda: self.returncode is not None, deadline=deadline, message=f"{self.name} ends")
        return self.exited_sync()

    def exited_sync(self, *, deadline: float = 30.0) -> int:
        """`exited` for tests without an event loop."""
        return self._popen.wait(deadline)

    def terminate(self) -> None:
        """SIGTERM to the process alone; follow with `exited`."""
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Any signal, to the process alone."""
        self._popen.send_signal(number)

    def kill9(self) -> None:
        """SIGKILL to it and all its children; it has ended when this returns."""
        self._run.kill(self._popen)

    def pause(self) -> None:
        """Freezes it and its children (SIGSTOP)."""
        reaper.freeze_family(self.pid)

    def resume(self) -> None:
        """Undoes `pause`."""
        reaper.signal_family(self.pid, signal.SIGCONT)

    def _decided(self, pattern: str) -> bool:
        ended = self.returncode is not None  # asked before reading: the last line may come between
        return ended or self._says(pattern)

    def _says(self, pattern: str) -> bool:
        searched = pattern, self.log_path.stat().st_size
        if searched == self._searched:
            return False  # it was not there, and nothing was printed since
        found = re.search(pattern, self.log(), re.MULTILINE) is not None
        self._searched = None if found else searched
        return found

    def _found(self, pattern: str) -> re.Match[str]:
        match = re.search(pattern, self.log(), re.MULTILINE)
        assert match, f"{self.name} ended with {self.returncode} without {pattern!r}:\n{self.log_tail()}"
        return match


class Processes:
    """Starts product processes for one test and ends them with it. `program` is that of the checkout's environment."""

    def __init__(self, run: Spawner, folder: Path, program: Path | None = None) -> None:
        self._run = run
        self._program = program
        self._folder = folder
        self._all: list[Process] = []

    def spawn(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, name: str = ""
    ) -> Process:
        """Starts `orchestrix arguments…`. `env` comes on top of ours without its ORCHESTRIX_ variables."""
        name = name or f"{arguments[0]}-{len(self._all) + 1}"
        log = self._folder / f"{name}.log"
        process = Process(
            self._run, name, (str(self._program or ORCHESTRIX), *arguments), _environment(env), cwd or self._folder, log
        )
        self._all.append(process)
        return process

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs `orchestrix arguments…` to its end; exit code, stdout and stderr are in the answer."""
        command = (str(self._program or ORCHESTRIX), *arguments)
        return self._run.complete(command, env=_environment(env), cwd=cwd or self._folder, timeout=timeout)

    async def run_async(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """`run` beside a running event loop, for tests that serve the command from the same process."""
        return await asyncio.to_thread(self.run, *arguments, env=env, cwd=cwd, timeout=timeout)

    def logs(self) -> list[tuple[str, str]]:
        """(title, end of the log) of each process, for the report of a failed test."""
        return [(f"{p.name} (pid {p.pid}, exit code {p.returncode})", p.log_tail()) for p in self._all]

    def close(self) -> None:
        """Ends all of them at once."""
        for process in self._all:
            process.kill9()


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRIX_")}
    return {**ours, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **(more or {})}
