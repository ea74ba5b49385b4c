"""What can a test do to a private server, whichever it is?"""

from __future__ import annotations

import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from tests.servers import reaper
from tests.servers.ports import free_port
from tests.servers.run import Account, Run, environment
from tests.support import eventually_sync

START_LIMIT = 90.0
"""Seconds that a server has to answer. A warm machine needs 1 to 9; two busy cores many more."""


class DidNotStart(Exception):
    """The server ended or stayed silent; the message holds the end of its log."""


class Server(ABC):
    """A server of the test's own on a free port of 127.0.0.1. Port and data survive stop, kill9 and start."""

    kind: ClassVar[str]
    user: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    durable = True
    """Whether it waits for the disk at each commit. One that no test ever kills need not, and is several times quicker
    at making databases and tables. Set before the first start."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.account = Account(self.user)
        self.home = run.folder(self.kind, self.account)
        self.port = free_port()
        self.log = self.home.with_name(self.home.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False

    @property
    def pid(self) -> int:
        """The main process. Raises AssertionError when the server is not running."""
        assert self._process is not None, f"{self.kind} is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the main process lives (paused counts)."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Starts the process without waiting until it answers."""
        assert not self.running, f"{self.kind} is running already"
        if not self._prepared:
            self.prepare()
            self._prepared = True
        self._process = self.run.spawn(self.argv(), env=self.env(), cwd=self.home, log=self.log, account=self.account)

    def start(self) -> None:
        """Starts the process, unless it runs, and waits until it answers. Raises DidNotStart."""
        if not self.running:
            self.launch()
        try:
            eventually_sync(self._settled, deadline=START_LIMIT, every=0.05, message=f"{self.kind} answers")
        except AssertionError as error:
            self.kill9()
            raise DidNotStart(f"{error}\n{self.log_tail()}") from error
        if not self.running:
            raise DidNotStart(f"{self.kind} ended while it started:\n{self.log_tail()}")

    def stop(self) -> None:
        """Asks the server to shut down in good order and waits; after 30 s it is killed."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(self.stop_signal)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self.kill9()

    def kill9(self) -> None:
        """Kills the server and all its processes at once, as a power cut would, except that the page cache survives."""
        if self._process is not None:
            self.run.kill(self._process)
            self._process = None

    def restart(self) -> None:
        """Stop, then start on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freezes all its processes (SIGSTOP): connections stay open and nothing answers."""
        reaper.freeze_family(self.pid)

    def resume(self) -> None:
        """Undoes `pause`."""
        reaper.signal_family(self.pid, signal.SIGCONT)

    def discard(self) -> None:
        """Ends the server for good and removes its data; the log stays until the run ends."""
        self.kill9()
        shutil.rmtree(self.home, ignore_errors=True)

    def place(self) -> dict[str, Any]:
        """Where it is, for another process that uses it."""
        return {"home": str(self.home), "port": self.port}

    def move_to(self, place: Mapping[str, Any]) -> None:
        """Is from now on the one that another process has started, and ends."""
        self.home.rmdir()
        self.home, self.port = Path(place["home"]), place["port"]

    def log_tail(self, lines: int = 40) -> str:
        """The end of what the server printed."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _settled(self) -> bool:
        return not self.running or self.answers()

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        """Writes a file into the server's folder, readable by the server alone."""
        path = self.home / name
        path.write_text(text)
        path.chmod(mode)
        self.account.own(path)
        return path

    def env(self) -> dict[str, str]:
        """The environment that the server runs in."""
        return environment(self.home)

    @abstractmethod
    def prepare(self) -> None:
        """Makes configuration and data, once."""

    @abstractmethod
    def argv(self) -> list[str]:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves its protocol right now."""
