"""Who makes an app's git repository, and takes it away again?"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from orchestrix import clock, crash
from orchestrix.config import GitSettings
from orchestrix.errors import ConfigError
from orchestrix.saga.messages import Command
from orchestrix.worker.context import Context
from orchestrix.worker.errors import Permanent, Transient
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.threads import in_thread

from .git_marks import alone, attempt_in, bury, is_own, made_by, mark, refuse_undone, sync, take_over
from .git_process import INSTALL, first_commit, git_is_missing
from .simulated import do_nothing, simulate

CREATE: Final = "cmd.createGitRepo"
DELETE: Final = "cmd.deleteGitRepo"
COMMANDS: Final = (CREATE, DELETE)
ARCHIVE: Final = ".archive"
UNFINISHED: Final = ".unfinished-"
OLD: Final = 3600.0
"""Seconds after which an unfinished repository belongs to no living worker: no step has that long."""


def handlers(settings: GitSettings) -> HandlerTable:
    """What does `cmd.createGitRepo`, and what undoes it; raises `ConfigError` if this machine cannot."""
    if settings.provider == "simulated":
        return HandlerTable([(command, simulate) for command in COMMANDS])
    if settings.provider == "none":
        return HandlerTable([(command, do_nothing) for command in COMMANDS])
    root = Path(settings.root).absolute()
    _prepare(root)
    return HandlerTable([(CREATE, partial(create, root)), (DELETE, partial(delete, root))])


async def create(root: Path, context: Context, command: Command) -> dict[str, Any]:
    """Makes the bare repository `{root}/{appId}.git` with a first commit.

    It is built in a folder of its own and appears by one rename, so that two workers at the same step cannot disturb
    each other and a crash leaves nothing half made. Raises `Permanent` if the place is taken by something that this
    step did not make, or the attempt has been undone already, and `Transient` if the disk or git fails.
    """
    draft = root / f"{UNFINISHED}{context.app_id}-{clock.token()}"
    try:
        if not await in_thread(_is_made, root, context):
            await _build(draft, context)
            crash.point("worker.in_work")
            await in_thread(_publish, root, draft, context)
    except OSError as error:
        raise _storage(root, error) from error
    return {"repoUrl": _place(root, context).as_uri()}


async def delete(root: Path, context: Context, command: Command) -> dict[str, Any]:
    """Moves the app's repository to the archive, for what is in it may be all that is left of somebody's work.

    The attempts that may still be on their way are refused from now on. Raises `Permanent` if something is in the place
    that the step did not make, and `Transient` if the disk fails.
    """
    try:
        archived: Path | None = await in_thread(_undo, root, context)
    except OSError as error:
        raise _storage(root, error) from error
    return {"archivedAs": archived.as_uri()} if archived else {}


async def _build(draft: Path, context: Context) -> None:
    try:
        await first_commit(draft, f"# {context.app_name}\n")
        await asyncio.to_thread(_seal, draft, context)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _is_made(root: Path, context: Context) -> bool:
    with alone(root, context.app_id):
        refuse_undone(root, context)
        return _is_mine(_place(root, context), context)


def _publish(root: Path, draft: Path, context: Context) -> None:
    """Nothing can cancel it, so that it removes the draft itself: nobody else knows when it is no longer in use."""
    final = _place(root, context)
    try:
        with alone(root, context.app_id):
            refuse_undone(root, context)
            if not _is_mine(final, context):
                _appear(draft, final, context)
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # after the rename there is nothing left to remove


def _appear(draft: Path, final: Path, context: Context) -> None:
    try:
        os.rename(draft, final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        _is_mine(final, context)  # somebody who asks for no lock was faster: only this step's own work may be there
    sync(final.parent)


def _is_mine(final: Path, context: Context) -> bool:
    """Whether this step has made the repository before; False if the place is free.

    A later attempt takes over what an earlier one has made: an undo of that one must not take it away any more.
    """
    if not os.path.lexists(final):
        return False
    found = made_by(final)
    if not is_own(found, context):
        raise Permanent("ForeignRepository", f"{final} is there already, and this step did not make it{_whose(found)}")
    if attempt_in(found) < context.attempt:
        take_over(final, context)
    return True


def _undo(root: Path, context: Context) -> Path | None:
    """Where the repository is from now on; None where the step had not made any."""
    with alone(root, context.app_id):
        bury(root, context)
        crash.point("worker.in_undo")
        archived = _put_away(root, context)
        sync(root)
        return archived


def _put_away(root: Path, context: Context) -> Path | None:
    final = _place(root, context)
    target = root / ARCHIVE / f"{context.app_id}-{context.undoes_attempt}.git"
    if not os.path.lexists(final):
        return target if is_own(made_by(target), context) else None
    found = made_by(final)
    if not is_own(found, context):
        raise Permanent("ForeignRepository", f"{final} was not made by the step that is undone{_whose(found)}")
    if attempt_in(found) > (context.undoes_attempt or 0):
        return None  # a person has let the saga run again since, and this undo comes late
    target.parent.mkdir(exist_ok=True)
    if os.path.lexists(target):
        target = target.with_name(f"{target.stem}-{clock.token()}.git")
    os.rename(final, target)
    sync(target.parent)
    return target


def _place(root: Path, context: Context) -> Path:
    return root / f"{context.app_id}.git"


def _whose(marker: Mapping[str, Any]) -> str:
    if not isinstance(marker.get("appName"), str):
        return ""
    name, id = marker["appName"], marker.get("correlationId")
    return f" but that of app {name!r} (correlation id {id}): move it away, or name another ORCHESTRIX_GIT__ROOT"


def _seal(draft: Path, context: Context) -> None:
    """Marks the repository and brings every byte of it to the disk."""
    mark(draft, context)
    for folder, _, files in os.walk(draft, topdown=False):
        for path in (*(os.path.join(folder, name) for name in files), folder):
            sync(path)


def _storage(root: Path, error: OSError) -> Transient:
    why = error.strerror or str(error)
    return Transient("Storage", f"the repository cannot be stored in {root}: {why}")


def _prepare(root: Path) -> None:
    if git_is_missing():
        raise ConfigError(f"cmd.createGitRepo needs git, which is not on this machine's PATH: {INSTALL}")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
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
