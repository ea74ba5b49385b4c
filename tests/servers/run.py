"""Where do the servers of one test run keep their files, as whom do they run, and who ends them?"""

from __future__ import annotations

import atexit
import os
import pwd
import re
import resource
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.servers import reaper

# RabbitMQ reserves about three per quorum queue and refuses connections without a word when they run out.
_OPEN_FILES = 65_536


class CommandFailed(Exception):
    """A command that prepares or steers a server failed; the message holds its output."""


class Account:
    """The user that a server runs as: `name` when we are root, otherwise ourselves."""

    def __init__(self, name: str) -> None:
        self._entry = _user(name) if os.geteuid() == 0 else None

    def own(self, path: Path) -> None:
        """Gives one file or folder to the user."""
        if self._entry:
            os.chown(path, self._entry.pw_uid, self._entry.pw_gid)

    def popen(self) -> dict[str, object]:
        """The arguments with which `subprocess` changes to the user."""
        if self._entry is None:
            return {}
        return {"user": self._entry.pw_uid, "group": self._entry.pw_gid, "extra_groups": []}


class Run:
    """One test run: a folder, and the reaper that ends what the run started even if the run itself is killed."""

    def __init__(self, host: Path | None = None, *, in_memory: bool = False) -> None:
        self.host = host
        """Where to ask for servers that this run shares with others, if it does."""
        folder = _memory_folder() if in_memory else None
        self.root = Path(tempfile.mkdtemp(prefix="orchestrix-", dir=folder or _open_folder()))
        self.root.chmod(0o711)  # the servers' own users pass through
        self._templates: dict[str, Path] = {}
        self._count = 0
        self._reaper = subprocess.Popen(
            [sys.executable, "-E", "-S", reaper.__file__],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._tell(f"remove {self.root}")
        atexit.register(self.close)

    def close(self) -> None:
        """Ends every process that is still watched and removes the folder. May be called twice."""
        atexit.unregister(self.close)
        if self._reaper.stdin and not self._reaper.stdin.closed:
            self._reaper.stdin.close()
            self._reaper.wait()

    def folder(self, kind: str, account: Account) -> Path:
        """A new folder that only the account can read."""
        self._count += 1
        path = self.root / f"{kind}{self._count}"
        path.mkdir(mode=0o700)
        account.own(path)
        return path

    def copy_of_template(self, kind: str, account: Account, target: Path, build: Callable[[Path], None]) -> None:
        """Copies the data folder that `build` makes once per run: making one takes seconds, copying it does not."""
        template = self._templates.get(kind)
        if template is None:
            template = self.folder(f"{kind}-template", account) / "data"
            build(template)
            self._templates[kind] = template
        subprocess.run(["cp", "-a", "--reflink=auto", str(template), str(target)], check=True)

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, account: Account | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a process in a session of its own, with raised file limits and its output appended to `log`."""
        with log.open("ab") as output, _open_files(_OPEN_FILES):
            process: subprocess.Popen[bytes] = subprocess.Popen(
                argv,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **(account.popen() if account else {}),  # type: ignore[call-overload]
            )
        self._tell(f"watch {process.pid}")
        return process

    def complete(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs a process to its end. Raises subprocess.TimeoutExpired."""
        return subprocess.run(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the process and all that it started, at once."""
        reaper.kill_family(process.pid)
        process.wait()
        self.forget(process)

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """The process has ended and was waited for."""
        self._tell(f"forget {process.pid}")

    def _tell(self, line: str) -> None:
        assert self._reaper.stdin is not None
        with suppress(ValueError):  # closed: the run is over
            self._reaper.stdin.write(line + "\n")
            self._reaper.stdin.flush()


def command(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, account: Account, text: str = "", timeout: float = 60.0
) -> str:
    """Runs a command that reads `text` to its end and returns its output. Raises CommandFailed."""
    result = subprocess.run(
        argv,
        env=dict(env),
        cwd=cwd,
        timeout=timeout,
        text=True,
        errors="replace",
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **account.popen(),  # type: ignore[call-overload]
    )
    if result.returncode != 0:
        raise CommandFailed(f"{' '.join(argv)} ended with {result.returncode}:\n{result.stdout}")
    return str(result.stdout)


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a server sees of our environment: where programs are, and a locale that every machine has."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return {"PATH": path, "HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", **more}


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


_MEMORY_BYTES: Final = 6 << 30
"""Free memory from which on the servers' files may lie there: all servers of a run together need about 1 GB."""


def _memory_folder() -> str | None:
    """A folder in memory, where there is one and enough of it: no test cuts the power, and to wait for a disk at each
    commit costs much of the time of a busy machine."""
    folder = "/dev/shm"
    try:
        room = os.statvfs(folder)
        free = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    enough = free is not None and min(room.f_bavail * room.f_frsize, int(free[1]) * 1024) >= _MEMORY_BYTES
    return folder if enough and os.access(folder, os.W_OK | os.X_OK) else None


def _open_folder() -> str:
    """The first folder for temporary files into which other users can look: TMPDIR is often private to us."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        parents = [Path(folder), *Path(folder).resolve().parents]
        if os.access(folder, os.W_OK) and all(p.stat().st_mode & stat.S_IXOTH for p in parents):
            return folder
    return tempfile.gettempdir()


@contextmanager
def _open_files(wanted: int) -> Iterator[None]:
    """Children started in the block may open `wanted` files, or as many as this machine lets us ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
    except (ValueError, OSError):  # only root may raise the hard limit, and not in every container
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
