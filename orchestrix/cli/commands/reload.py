"""Reload: `dev --reload` starts again when a source file of the user's modules changes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrix.cli.interruptible_sleep import pause
from orchestrix.config.file import NAME
from orchestrix.config.settings import Settings
from orchestrix.telemetry import sinks
from orchestrix.telemetry.process_stop import ProcessStop

ENVIRONMENT: Final = "NODE_ENV"
DEVELOPMENT: Final = "development"
POLL_S: Final = 0.5
"""Seconds between two looks at the files."""
WHY: Final = "reload"
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_VENV: Final = "pyvenv.cfg"

Stamps = Mapping[str, tuple[int, int]]
"""The time of the last change of each file, and its size."""


def is_wanted(flag: bool, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `dev` reloads: by the flag, or because `NODE_ENV` is set to `development`."""
    return flag or environ.get(ENVIRONMENT) == DEVELOPMENT


def watched(settings: Settings, folder: Path) -> list[Path]:
    """Where the user's modules lie: the folder that their names count from, and packages that are elsewhere.

    None of them is imported for that.
    """
    root = Path(settings.origin.folder or folder)
    names = (*settings.sagas, *settings.workers, *settings.resources)
    packages = sorted({one.partition(".")[0] for one in names})
    found = [root, *(place for name in packages for place in _places(name, [root, folder]))]
    return [one for one in dict.fromkeys(found) if one == root or not one.is_relative_to(root)]


def _places(package: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Where it is found first: in one of the folders, which are not yet on the path for imports, or by that path."""
    for folder in folders:
        for place in (folder / package, folder / f"{package}.py"):
            if place.exists():
                yield place
                return
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations is not None:
            yield from (Path(one) for one in spec.submodule_search_locations)
        elif spec is not None and spec.origin is not None and spec.has_location:
            yield Path(spec.origin)


class SourceWatch:
    """Knows how the source files below these folders were when it was made."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._before = _stamps(places)

    def changed(self) -> str | None:
        """A file that is new, changed or gone, once all of them have been the same for a moment; else None."""
        now = _stamps(self._places)
        if now == self._before:
            return None
        while now != (later := self._after_a_moment()):  # an editor or a checkout is still writing
            now = later
        found = sorted(name for name in {*self._before, *now} if self._before.get(name) != now.get(name))
        return found[0] if found else None

    def _after_a_moment(self) -> Stamps:
        pause(POLL_S / 5)
        return _stamps(self._places)

    def wait(self, until: Callable[[], bool] = lambda: False) -> str | None:
        """Waits for a change; None where `until` is true before that."""
        while not until():
            if (name := self.changed()) is not None:
                return name
            pause(POLL_S)
        return None


class Reloader:
    """Stops this process in good order when a file has changed, unless it stops already: by SIGINT, as Ctrl-C does."""

    def __init__(self, watch: SourceWatch, stop: ProcessStop) -> None:
        self.changed: str | None = None
        self._watch, self._stop = watch, stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)

    def __enter__(self) -> Reloader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        name = self._watch.wait(lambda: self._over.is_set() or self._stop.begun)
        main = threading.main_thread().ident
        if name is None or main is None or self._over.is_set() or self._stop.begun:
            return
        self.changed = name
        self._stop.begin(WHY)
        signal.pthread_kill(main, signal.SIGINT)


def restart(changed: str) -> None:
    """This process starts again, under its id and with its arguments. Does not return."""
    shown = os.path.relpath(changed)
    print(f"Restarting: {changed if shown.startswith('..') else shown} has changed.", flush=True)
    sinks.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _stamps(places: Iterable[Path]) -> Stamps:
    found: dict[str, tuple[int, int]] = {}
    for place in places:
        for entry in _files(str(place)):
            with contextlib.suppress(OSError):  # it is gone meanwhile
                stat = os.stat(entry)
                found[entry] = stat.st_mtime_ns, stat.st_size
    return found


def _files(place: str) -> Iterator[str]:
    """Python files and files of settings, in no hidden folder and in no environment of Python or Node.js."""
    if os.path.isfile(place):
        yield place
        return
    for folder, inner, names in os.walk(place):
        if _VENV in names:
            inner[:] = []
            continue
        inner[:] = [one for one in inner if not one.startswith(".") and one not in _SKIPPED]
        yield from (os.path.join(folder, one) for one in names if one.endswith(".py") or one == NAME)
