"""Git repository of an app: the step that creates it and the compensation that archives it."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel

from orchestrix import Command, Context, Permanent, Transient, handles
from orchestrix.testing import crash_point

from .git_marks import alone, attempt_in, bury, is_own, made_by, mark, refuse_undone, sync, take_over
from .git_process import INSTALL, first_commit, git_version
from .simulated import stand_in
from .threads import in_thread

ARCHIVE: Final = ".archive"
UNFINISHED: Final = ".unfinished-"
OLD_S: Final = 3600.0
"""Seconds after which an unfinished repository belongs to no living worker: no step has that long."""


class GitSettings(BaseModel):
    """Where `cmd.createGitRepo` makes its repositories."""

    section: ClassVar[str] = "git"

    provider: Literal["local", "simulated", "none"] = "local"
    root: str = ".orchestrix/repos"

    @property
    def folder(self) -> Path:
        """The root as an absolute path."""
        return Path(self.root).absolute()

    def check(self) -> str:
        """Which git there is. Raises `ValueError` if there is none, or nothing can be made in the root."""
        if self.provider != "local":
            return f"not needed (git.provider is {self.provider})"
        version = git_version()
        if version is None:
            raise ValueError("cmd.createGitRepo needs git, which is not on this machine's PATH", INSTALL)
        there = next(place for place in (self.folder, *self.folder.parents) if os.path.lexists(place))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            what = "is not a folder" if not there.is_dir() else "is not writable"
            raise ValueError(
                f"ORCHESTRIX_GIT__ROOT: {self.folder} cannot be used, for {there} {what}",
                "choose a folder that this user can write",
            )
        return version


SETTINGS = GitSettings


@handles("cmd.createGitRepo")
async def create(context: Context, command: Command) -> dict[str, Any] | None:
    """Makes the bare repository `{root}/{appId}.git` with a first commit.

    It is built in a folder of its own and appears by one rename, so that two workers at the same step cannot disturb
    each other and a crash leaves nothing half made. Raises `Permanent` if the place is taken by something that this
    step did not make, or the attempt has been undone already, and `Transient` if the disk or git fails.
    """
    if await stand_in(context.settings.provider):
        return None
    root: Path = context.settings.folder
    draft = root / f"{UNFINISHED}{context.app_id}-{secrets.token_hex(8)}"
    try:
        await in_thread(_prepare, root)
        if not await in_thread(_is_made, root, context):
            await _build(draft, context)
            crash_point("git.during_work")
            await in_thread(_publish, root, draft, context)
    except OSError as error:
        raise _storage(root, error) from error
    return {"repoUrl": _place(root, context).as_uri()}


@handles("cmd.deleteGitRepo")
async def delete(context: Context, command: Command) -> dict[str, Any] | None:
    """Moves the app's repository to the archive, because it may hold the only copy of a user's work.

    Attempts that may still be in flight are refused from now on. Raises `Permanent` if something is in the place that
    the step did not make, and `Transient` if the disk fails.
    """
    if await stand_in(context.settings.provider):
        return None
    root: Path = context.settings.folder
    try:
        await in_thread(_prepare, root)
        archived = await in_thread(_undo, root, context)
    except OSError as error:
        raise _storage(root, error) from error
    return {"archivedAs": archived.as_uri()} if archived else {}


async def _build(draft: Path, context: Context) -> None:
    try:
        await first_commit(draft, f"# {context.app_name}\n")
        await in_thread(_seal, draft, context)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _is_made(root: Path, context: Context) -> bool:
    with alone(root, context.app_id):
        refuse_undone(root, context)
        return _is_mine(_place(root, context), context)


def _publish(root: Path, draft: Path, context: Context) -> None:
    """It cannot be cancelled, so it removes the draft itself: no caller knows when it is no longer in use."""
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
        _is_mine(final, context)  # a writer without the lock was faster: only this step's own work may be there
    sync(final.parent)


def _is_mine(final: Path, context: Context) -> bool:
    """Whether this step has made the repository before; False if the place is free.

    A later attempt takes over what an earlier one has made: the earlier one's compensation must no longer remove it.
    """
    if not os.path.lexists(final):
        return False
    found = made_by(final)
    if not is_own(found, context):
        raise Permanent("ForeignRepository", f"{final} already exists and was not created by this step{_whose(found)}")
    if attempt_in(found) < context.attempt:
        take_over(final, context)
    return True


def _undo(root: Path, context: Context) -> Path | None:
    """The repository's path in the archive; None where the step had not made any."""
    with alone(root, context.app_id):
        bury(root, context)
        crash_point("git.in_undo")
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
        raise Permanent("ForeignRepository", f"{final} was not created by the step being undone{_whose(found)}")
    if attempt_in(found) > (context.undoes_attempt or 0):
        return None  # the saga was retried by a person since, and this compensation arrives late
    target.parent.mkdir(exist_ok=True)
    if os.path.lexists(target):
        target = target.with_name(f"{target.stem}-{secrets.token_hex(8)}.git")
    os.rename(final, target)
    sync(target.parent)
    return target


def _place(root: Path, context: Context) -> Path:
    return root / f"{context.app_id}.git"


def _whose(marker: Mapping[str, Any]) -> str:
    if not isinstance(marker.get("appName"), str):
        return ""
    name, id = marker["appName"], marker.get("correlationId")
    return f", it belongs to app {name!r} (correlation id {id}): move it away, or set another ORCHESTRIX_GIT__ROOT"


def _seal(draft: Path, context: Context) -> None:
    """Marks the repository and syncs all of it to disk."""
    mark(draft, context)
    for folder, _, files in os.walk(draft, topdown=False):
        for path in (*(os.path.join(folder, name) for name in files), folder):
            sync(path)


def _storage(root: Path, error: OSError) -> Transient:
    why = error.strerror or str(error)
    return Transient("Storage", f"cannot store the repository in {root}: {why}")


def _prepare(root: Path) -> None:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep_once(root)


@cache
def _sweep_once(root: Path) -> None:
    _sweep(root)


def _sweep(root: Path) -> None:
    """Removes what is left of workers that were killed while they built."""
    limit = time.time() - OLD_S
    for leftover in root.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):  # a living worker has just finished it
            if leftover.lstat().st_mtime < limit:
                shutil.rmtree(leftover, ignore_errors=True)
