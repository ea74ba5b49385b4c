"""Repository markers: record which step made a repository, and which of its attempts were undone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from orchestrix import Context, Permanent

MARKER: Final = "orchestrix.json"
"""The file in the bare repository that says which step made it, in which attempt."""
TOMBSTONES: Final = ".tombstones"
LOCKS: Final = ".locks"
ATTEMPT: Final = "attempt"
UNDONE: Final = "undoesAttempt"
KEY: Final = "effectKey"
FORMER_KEY: Final = "idempotencyKey"


@contextmanager
def alone(root: Path, app_id: int) -> Iterator[None]:
    """No one else, in any process, decides inside the block what becomes of the app's repository.

    Blocks its thread until it is its turn. The lock is that of an open file: a killed process lets it go. The file
    stays, because waiting processes have it open.
    """
    import fcntl  # which not every system has

    handle = os.open(_folder(root, LOCKS) / f"{app_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def made_by(repository: Path) -> Mapping[str, Any]:
    """What the repository's marker says; empty where there is none that can be read."""
    return _read(repository / MARKER)


def is_own(fields: Mapping[str, Any], context: Context) -> bool:
    """Whether a marker or a tombstone is of this step of this app, in whichever run of its saga.

    Ids begin at 1 again in a new database: a folder kept from an old one has other apps' repositories under the same
    ids. Before there were effect keys, the key had another name.
    """
    key = fields.get(KEY, fields.get(FORMER_KEY))
    return (
        isinstance(key, str)
        and context.owns(key)
        and all(fields.get(name) == value for name, value in _identity(context).items() if name != KEY)
    )


def attempt_in(fields: Mapping[str, Any], name: str = ATTEMPT) -> int:
    """The attempt that a marker or a tombstone names; 0 where it names none."""
    value = fields.get(name)
    return value if isinstance(value, int) else 0


def mark(draft: Path, context: Context) -> None:
    """Marks a new repository as the work of this attempt; the caller syncs it to disk."""
    (draft / MARKER).write_bytes(_json(_made(context)))


def take_over(repository: Path, context: Context) -> None:
    """Marks the step's repository as that of this attempt, which is a later one. Only while `alone`."""
    _write(repository / MARKER, _made(context))


def bury(root: Path, context: Context) -> None:
    """Writes a tombstone: every attempt that this compensation undoes is refused from now on. Only while `alone`.

    What is already refused stays so, because an older compensation may arrive after a newer one.
    """
    path = _folder(root, TOMBSTONES) / f"{context.app_id}.json"
    before = _read(path)
    refused = attempt_in(before, UNDONE) if is_own(before, context) else 0
    _write(path, {**_identity(context), UNDONE: max(refused, context.undoes_attempt or 0)})


def refuse_undone(root: Path, context: Context) -> None:
    """Raises `Permanent` if this attempt was undone before it has come into effect. Only while `alone`."""
    tombstone = _read(root / TOMBSTONES / f"{context.app_id}.json")
    if is_own(tombstone, context) and context.attempt <= attempt_in(tombstone, UNDONE):
        raise Permanent("Undone", f"attempt {context.attempt} of {context.step} was undone before it ran")


def sync(path: Path | str) -> None:
    """Syncs a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _folder(root: Path, name: str) -> Path:
    folder = root / name
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync(root)
    return folder


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically and syncs it. Not safe for two writers of the same file."""
    draft = path.with_name(path.name + ".new")
    draft.write_bytes(_json(fields))
    sync(draft)
    os.replace(draft, path)
    sync(path.parent)


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _made(context: Context) -> dict[str, object]:
    return {**_identity(context), ATTEMPT: context.attempt}


def _identity(context: Context) -> dict[str, object]:
    """What identifies the step's work, also against the same id in another database."""
    return {
        KEY: context.effect_key,
        "appId": context.app_id,
        "appName": context.app_name,
        "correlationId": context.correlation_id,
    }


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
