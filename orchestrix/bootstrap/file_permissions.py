"""File permissions: keep what `dev` stores from the other users of the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
DATABASE: Final = "orchestrix.db"
REPOSITORIES: Final = "repos"


def tighten(folder: Path) -> None:
    """Removes the permissions of all but the owner in the folder of a `dev`, which is made where it is missing.

    Folders first: nobody else can reach what is in a closed one. What we may not change is left as it is, for the
    closed folder around it suffices. Raises `OSError` if the folder cannot be made.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    _take(folder, FOLDER_MODE)
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        _take(folder / name, FILE_MODE)
    repositories = folder / REPOSITORIES
    _take(repositories, FOLDER_MODE)
    with suppress(OSError):
        for one in repositories.iterdir():
            if one.is_dir() and not one.is_symlink():
                _take(one, FOLDER_MODE)


def _take(path: Path, mode: int) -> None:
    with suppress(OSError):
        if not path.is_symlink() and os.stat(path).st_mode & 0o077:
            os.chmod(path, mode)
