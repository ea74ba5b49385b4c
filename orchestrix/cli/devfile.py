"""Dev file: how `serve`, `worker` and the client commands find the `dev` that runs in their folder."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from orchestrix import clock, fork_safety
from orchestrix.cli.interruptible_sleep import pause
from orchestrix.config.urls import SQLITE_URL_PREFIX, sqlite_url
from orchestrix.errors import ConfigError, ConflictError, Unavailable

FOLDER = ".orchestrix"
CLAIM_TIMEOUT_S = 0.5
_foreign = False
"""Whether this process was forked from a `dev`, whose files these are."""


@dataclass(frozen=True, slots=True)
class DevFile:
    """What `dev` writes about itself."""

    pid: int
    started_at: str
    database_url: str
    broker_url: str
    api_url: str


@dataclass(frozen=True, slots=True)
class DevRun:
    """One run of `dev`, by the name that its node and its worker have in the database; whether a second signal ended
    it.
    """

    node: str
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class LastPorts:
    """Which ports the last `dev` of this folder had; it tries them first."""

    api: int | None = None
    broker: int | None = None


def path_of(folder: Path) -> Path:
    """Where the file of a working folder is."""
    return folder / FOLDER / "dev.json"


def read(folder: Path) -> DevFile | None:
    """What the file says, or None without one.

    Raises `ConfigError` for a file that is not ours, or that another user can have written: commands and workers
    send their data where it says.
    """
    path = path_of(folder)
    try:
        found = json.loads(_trusted(path))
        return DevFile(
            pid=_whole(found["pid"]),
            started_at=str(found["startedAt"]),
            database_url=str(found["databaseUrl"]),
            broker_url=str(found["brokerUrl"]),
            api_url=str(found["apiUrl"]),
        )
    except FileNotFoundError:
        return None
    except NotADirectoryError as wrong:
        raise ConfigError(_in_the_way(folder)) from wrong
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise ConfigError(f"{path} cannot be read ({wrong}): delete it, then start `orchestrix dev` again") from wrong


def running(folder: Path) -> DevFile | None:
    """`read`, and its process lives; None if there is no `dev`. Raises `Unavailable` if it is dead or just starting."""
    found = read(folder)
    if found is None and _lock_taken(folder):
        raise Unavailable("the `orchestrix dev` of this folder is not ready yet: try again in a moment")
    if found is not None and not alive(folder, found.pid):
        raise Unavailable(
            f"the `orchestrix dev` of this folder (process {found.pid}) was killed or has crashed: "
            "start it again with `orchestrix dev`, or set the addresses by options or ORCHESTRIX_ variables (if it "
            "dies each time, a handler kills it: start it without that module in `workers`, and `cancel` what is stuck)"
        )
    return found


def alive(folder: Path, pid: int) -> bool:
    """Whether the `dev` of this folder runs. The lock proves it, also after its pid was given to another process."""
    held = _lock_taken(folder)
    return _exists(pid) if held is None else held


def _lock_taken(folder: Path) -> bool | None:
    """Whether a `dev` has the folder; None if the lock cannot be looked at."""
    try:
        probe = os.open(_lock_path(folder), os.O_RDONLY)
    except OSError:
        return None
    try:
        _flock(probe, shared=True)
    except OSError:
        return True
    finally:
        os.close(probe)
    return False


def broker_url(folder: Path, first: str) -> Callable[[], str]:
    """A function to ask before each connect: the broker that `dev` has now, or the last known while there is none."""
    last = first

    def current() -> str:
        nonlocal last
        with suppress(ConfigError):  # half-written by another program; the next read will show
            found = read(folder)
            last = found.broker_url if found is not None else last
        return last

    return current


@contextmanager
def claimed(folder: Path) -> Iterator[DevRun | None]:
    """This process is the `dev` of the folder until the block ends; then its file is deleted, however the block ended.

    Yields the last run, if it was killed: its process has ended, for it had the lock until then. It is yielded again
    until a `dev` has started without failing. Raises `ConflictError` while another one is, and
    `ConfigError` if the folder cannot be written.
    """
    global _foreign
    try:
        path_of(folder).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(_lock_path(folder), os.O_RDWR | os.O_CREAT, 0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(_in_the_way(folder)) from error
    except OSError as error:
        raise ConfigError(f"cannot write {folder / FOLDER} ({error.strerror}): choose another folder") from error
    _foreign = False
    forget = fork_safety.on_fork(lambda: _let_go(lock))
    try:
        _lock(lock, folder)
        killed = _left_by_one_that_was_killed(folder)
        _remove(path_of(folder))
        try:
            yield killed
        finally:
            _remove(path_of(folder))
            if killed is None or _left_by_one_that_was_killed(folder) != killed:
                _remove(_life_path(folder))
    finally:
        forget()
        os.close(lock)


def _let_go(lock: int) -> None:
    """In a forked child: the lock is its parent's and must end with the parent. Nothing is written to the folder."""
    global _foreign
    _foreign = True
    os.close(lock)


def _in_the_way(folder: Path) -> str:
    return f"{folder / FOLDER} is a file but must be a folder: move it away, or use another folder"


def _left_by_one_that_was_killed(folder: Path) -> DevRun | None:
    try:
        found = json.loads(_trusted(_life_path(folder)))
        node, mine = str(found["nodeId"]), found["lock"] == _lock_mark(folder)
        return DevRun(node, found["cutOff"] is True) if mine and node.isprintable() else None
    except (ConfigError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # what it was doing is found out in another way, later


def _trusted(path: Path) -> str:
    """What the file says, if it is this user's and no other one may write it. Raises `ConfigError` and `OSError`."""
    with open(path, encoding="utf-8") as file:
        state = os.fstat(file.fileno())
        mine, open_to_others = state.st_uid == os.geteuid(), state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not mine or open_to_others:
            why = "can be written by others" if mine else "belongs to another user"
            raise ConfigError(
                f"{path} {why}, so it is not trusted: start `orchestrix dev` yourself, or set --api, --database-url, "
                "--broker-url or their ORCHESTRIX_ variables"
            )
        return file.read()


def write(folder: Path, *, database_url: str, broker_url: str, api_url: str) -> None:
    """Says where this `dev` is: readable by its owner only, for the URLs may hold passwords. Inside `claimed` only."""
    _replace(
        path_of(folder),
        {
            "pid": os.getpid(),
            "startedAt": clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "databaseUrl": absolute(database_url, folder),
            "brokerUrl": broker_url,
            "apiUrl": api_url,
        },
    )


def keep_life(folder: Path, life: DevRun) -> None:
    """For the next `dev` of this folder, should this one be killed. Inside `claimed` only."""
    _replace(_life_path(folder), {"nodeId": life.node, "cutOff": life.cut_off, "lock": _lock_mark(folder)})


def absolute(database_url: str, folder: Path) -> str:
    """A relative SQLite path means another file in another folder, so it is written out."""
    place, mark, query = database_url.removeprefix(SQLITE_URL_PREFIX).partition("?")
    if not database_url.startswith(SQLITE_URL_PREFIX) or place.startswith(("/", ":memory:", "file:")) or not place:
        return database_url
    return f"{sqlite_url((folder / unquote(place)).resolve())}{mark}{query}"


def last_ports(folder: Path) -> LastPorts:
    """The ports of the last `dev`; whatever cannot be read is simply not known."""
    try:
        found = json.loads(_last_path(folder).read_text(encoding="utf-8"))
        return LastPorts(_whole(found["apiPort"]), _whole(found["brokerPort"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return LastPorts()


def keep_ports(folder: Path, *, api: int, broker: int) -> None:
    """For the next `dev` of this folder."""
    _replace(_last_path(folder), {"apiPort": api, "brokerPort": broker})


def _lock(lock: int, folder: Path) -> None:
    """Takes the lock. `alive` holds it for a moment too, so one refusal is no proof of another `dev`."""
    deadline = clock.monotonic() + CLAIM_TIMEOUT_S
    while True:
        try:
            return _flock(lock)
        except OSError as busy:
            if clock.monotonic() >= deadline:
                raise ConflictError(_already(folder)) from busy
        pause(0.02)


def _flock(file: int, *, shared: bool = False) -> None:
    """Takes the lock without waiting; raises `OSError` if it is taken."""
    import fcntl  # only some systems have it, and not every command needs it

    fcntl.flock(file, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))


def _already(folder: Path) -> str:
    other = None
    with suppress(ConfigError):
        other = read(folder)
    where = f" (process {other.pid}, {other.api_url})" if other else ""
    return f"an `orchestrix dev` runs in this folder already{where}: stop it first, or start in another folder"


def _replace(path: Path, value: dict[str, Any]) -> None:
    """Readers see the old file or the new one, never half of it."""
    if _foreign:
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        draft.unlink()
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
    os.replace(draft, path)


def _remove(*paths: Path) -> None:
    for path in paths if not _foreign else ():
        with suppress(FileNotFoundError):
            path.unlink()


def _lock_mark(folder: Path) -> str:
    """Identifies the lock: a copy of the folder has another, while the first may be held. Raises `OSError`."""
    found = os.stat(_lock_path(folder))
    return f"{found.st_dev}:{found.st_ino}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{value!r} is no positive number")
    return value


def _lock_path(folder: Path) -> Path:
    return folder / FOLDER / "dev.lock"


def _life_path(folder: Path) -> Path:
    return folder / FOLDER / "life.json"


def _last_path(folder: Path) -> Path:
    return folder / FOLDER / "last.json"
