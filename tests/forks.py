"""How do hundreds of product processes start without each of them importing everything anew?

`python -m tests.forks SOCKET` has imported the product and waits. Each order that comes by the socket becomes a process
forked from it, which from then on is what `orchestrix …` is: its own arguments, environment, folder, session and
output. Only what Python reads before the first line of the program (PYTHONIOENCODING, say) is the server's.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from tests.servers import reaper
from tests.servers.run import Run
from tests.support import eventually_sync

ROOT = Path(__file__).parents[1]
IMPORTED = (
    "aiosqlite",
    "orchestrix.bootstrap",
    "orchestrix.cli",
    "orchestrix.cli.commands.processes",
    "orchestrix.server",
    "orchestrix.telemetry.sdk",
    "asyncmy",
    "asyncpg",
    "sqlalchemy.dialects.mysql.asyncmy",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
)


class Forked:
    """A process that the fork server has started."""

    def __init__(self, wire: socket.socket) -> None:
        self._socket = wire
        self._wire = wire.makefile("rb", buffering=0)  # reads no byte ahead that `select` would miss
        self.pid = int(self._wire.readline())
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, minus the signal's number if one ended it, or None while it runs."""
        if self._code is None and not _alive(self.pid):
            self.wait()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, which the server tells. Raises subprocess.TimeoutExpired."""
        if self._code is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._code = int(self._wire.readline())
            self._wire.close()
            self._socket.close()
        return self._code

    def send_signal(self, sig: int) -> None:
        """As it says."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, sig)


class Forks:
    """The other end of the server's socket."""

    def __init__(self, address: Path) -> None:
        self._address = address

    @property
    def ready(self) -> bool:
        """Whether the server takes orders."""
        return self._address.exists()

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, errors: Path | None = None
    ) -> Forked:
        """Runs `argv`, which begins with the program `orchestrix`. Both streams go to `log`, or stderr to `errors`."""
        log.touch()
        wire = socket.socket(socket.AF_UNIX)
        wire.connect(str(self._address))
        order = {"argv": list(argv[1:]), "env": dict(env), "cwd": str(cwd), "logs": [str(log), str(errors or log)]}
        wire.sendall(json.dumps(order).encode() + b"\n")
        return Forked(wire)

    def complete(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs `argv` to its end. Raises subprocess.TimeoutExpired."""
        with tempfile.TemporaryDirectory() as folder:
            out, errors = Path(folder, "out"), Path(folder, "errors")
            process = self.spawn(argv, env=env, cwd=cwd, log=out, errors=errors)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill(process)
                raise
            return subprocess.CompletedProcess(argv, code, out.read_text(), errors.read_text())

    def kill(self, process: Forked) -> None:
        """Ends the process and all that it started, at once."""
        reaper.kill_family(process.pid)
        process.wait()


@contextmanager
def running(run: Run) -> Iterator[Forks]:
    """A fork server; it ends with the block."""
    address, log = run.root / "forks", run.root / "forks.log"
    process = run.spawn(argv(address), env=dict(os.environ), cwd=ROOT, log=log)
    server = Forks(address)
    eventually_sync(lambda: server.ready or process.poll(), deadline=60, message="the fork server is ready")
    assert server.ready, log.read_text()
    yield server
    run.kill(process)


def argv(address: Path) -> list[str]:
    """The command that runs the server."""
    return [sys.executable, "-m", __name__, str(address)]


def _alive(pid: int) -> bool:
    state = reaper.stat_of(pid)
    return bool(state) and state[0] not in "ZX"


def _serve(address: Path) -> None:
    """For ever; returns in a process that it has started, which goes on with `_become`."""
    for name in IMPORTED:
        importlib.import_module(name)
    # The product makes and keeps them at the start of a node: a sixth of what that costs.
    importlib.import_module("orchestrix.api.app").own_schemas()
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    hidden = address.with_suffix(".new")
    listening.bind(str(hidden))
    listening.listen(64)
    hidden.rename(address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        wire, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _keep(wire)
        wire.close()


def _keep(wire: socket.socket) -> NoReturn:
    """Starts the process and waits for its end, so that its exit code is known."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order = json.loads(wire.makefile("r").readline())
    pid = os.fork()
    if pid == 0:
        wire.close()
        _become(order)
    wire.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # who asked for it is gone
        wire.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(order: dict[str, Any]) -> NoReturn:
    """Is the program from now on, to its end."""
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    for number, path in zip((1, 2), order["logs"], strict=True):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, number)
        os.close(log)
    sys.argv = ["orchestrix", *order["argv"]]
    try:
        sys.exit(importlib.import_module("orchestrix.cli").main())
    except SystemExit as ended:
        _end(ended.code)


def _end(code: str | int | None) -> NoReturn:
    """Ends the process as the interpreter does, but for the last step: to take all modules apart, which the server's
    next process has again, costs more than most commands do."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # what complains when it is thrown away, does
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _serve(Path(sys.argv[1]))
