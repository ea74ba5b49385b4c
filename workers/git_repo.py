"""Who makes an app's git repository?"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from app import clock, crash
from app.config import GitSettings
from app.errors import ConfigError
from sagas.engine.messages import Command, dump

from .git_process import INSTALL, first_commit, git_is_missing
from .sdk.context import Context
from .sdk.errors import Permanent, Transient
from .sdk.handlers import HandlerTable
from .simulated import do_nothing, simulate

CREATE: Final = "cmd.createGitRepo"
MARKER: Final = "orchestrix.json"
"""The file in the bare repository that says which step made it."""
UNFINISHED: Final = ".unfinished-"
OLD: Final = 3600.0
"""Seconds after which an unfinished repository belongs to no living worker: no step has that long."""


def handlers(settings: GitSettings) -> HandlerTable:
    """What does `cmd.createGitRepo`; raises `ConfigError` if this machine cannot."""
    if settings.provider == "simulated":
        return HandlerTable([(CREATE, simulate)])
    if settings.provider == "none":
        return HandlerTable([(CREATE, do_nothing)])
    root = Path(settings.root).absolute()
    _prepare(root)
    return HandlerTable([(CREATE, partial(create, root))])


async def create(root: Path, context: Context, command: Command) -> dict[str, Any]:
    """Makes the bare repository `{root}/{appId}.git` with a first commit.

    It is built in a folder of its own and appears by one rename, so that two workers at the same step cannot disturb
    each other and a crash leaves nothing half made. Raises `Permanent` if the place is taken by something that this
    step did not make, and `Transient` if the disk or git fails.
    """
    final = root / f"{context.app_id}.git"
    draft = root / f"{UNFINISHED}{context.app_id}-{clock.token()}"
    try:
        if not await asyncio.to_thread(_is_mine, final, context):
            await _build(draft, context)
            crash.point("worker.in_work")
            await asyncio.to_thread(_publish, draft, final, context)
    except OSError as error:
        raise _storage(root, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # after the rename there is nothing left to remove
    return {"repoUrl": final.as_uri()}


async def _build(draft: Path, context: Context) -> None:
    await first_commit(draft, f"# {context.app_name}\n")
    await asyncio.to_thread(_seal, draft, context)


def _is_mine(final: Path, context: Context) -> bool:
    """Whether this step has made the repository before; False if the place is free."""
    if not os.path.lexists(final):
        return False
    found = _marker_in(final)
    if found == _marker(context):
        return True
    raise Permanent("ForeignRepository", f"{final} is there already, and this step did not make it{_whose(found)}")


def _whose(marker: object) -> str:
    """Ids begin at 1 again in a new database: a folder kept from an old one has repositories at their places."""
    if not isinstance(marker, dict) or not isinstance(marker.get("appName"), str):
        return ""
    name, id = marker["appName"], marker.get("correlationId")
    return f" but that of app {name!r} (correlation id {id}): move it away, or name another ORCHESTRIX_GIT__ROOT"


def _marker(context: Context) -> dict[str, object]:
    """What tells the step's work from everybody else's, also from that of the same id in another database."""
    return {
        "idempotencyKey": context.idempotency_key,
        "appId": context.app_id,
        "appName": context.app_name,
        "correlationId": context.correlation_id,
    }


def _marker_in(final: Path) -> object:
    try:
        return json.loads((final / MARKER).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _seal(draft: Path, context: Context) -> None:
    """Marks the repository and brings every byte of it to the disk."""
    (draft / MARKER).write_bytes(dump(_marker(context)) + b"\n")
    for folder, _, files in os.walk(draft, topdown=False):
        for path in (*(os.path.join(folder, name) for name in files), folder):
            _sync(path)


def _publish(draft: Path, final: Path, context: Context) -> None:
    try:
        os.rename(draft, final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        _is_mine(final, context)  # another run of this step was faster, or the place is somebody else's
    _sync(str(final.parent))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _storage(root: Path, error: OSError) -> Transient:
    why = error.strerror or str(error)
    return Transient("Storage", f"the repository cannot be stored in {root}: {why}")


def _prepare(root: Path) -> None:
    if git_is_missing():
        raise ConfigError(f"cmd.createGitRepo needs git, which is not on this machine's PATH: {INSTALL}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
    except OSError as error:
        where = f"ORCHESTRIX_GIT__ROOT: {root} cannot be used"
        raise ConfigError(f"{where}: {error.strerror or error}. Name a folder that this user may write") from error


def _sweep(root: Path) -> None:
    """Removes what workers left behind that were killed while they built."""
    limit = clock.now().timestamp() - OLD
    for leftover in root.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):  # a living worker has just finished it
            if leftover.lstat().st_mtime < limit:
                shutil.rmtree(leftover, ignore_errors=True)
