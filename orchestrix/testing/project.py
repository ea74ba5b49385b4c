"""Project: the sagas and handlers that an orchestrix.toml names, for the stories of its tests."""

from __future__ import annotations

import os
import sys
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from orchestrix.errors import ConfigError
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga
from orchestrix.worker.handlers import Handler, HandlerTable
from orchestrix.worker.modules import load_handlers, load_sagas

FILE: Final = "orchestrix.toml"
SETTING: Final = "ORCHESTRIX_CONFIG"


class Project:
    """What lies in `folder`, or beside the file that ORCHESTRIX_CONFIG names. Its modules are imported when needed."""

    def __init__(self, folder: Path) -> None:
        self._file = Path(os.environ.get(SETTING) or folder / FILE)

    def saga(self, name: str) -> Saga:
        """The saga of that name. Raises `ConfigError` if there is none, or no file."""
        sagas = {saga.name: saga for saga in load_sagas(self._named("sagas"))}
        if name not in sagas:
            raise ConfigError(f"{self._file} has no saga {name!r}: it has {', '.join(sagas) or 'none'}")
        return sagas[name]

    def handlers(self, saga: Saga) -> dict[str, Handler]:
        """What its workers do for `saga`, by command. Raises `ConfigError` for modules that cannot be imported."""
        catalog = Catalog([saga])
        known = (*catalog.commands, *catalog.jobs)
        return {command: handler for command, handler in self._table.items() if command in known}

    @cached_property
    def _table(self) -> HandlerTable:
        return load_handlers(self._named("workers"))

    def _named(self, part: str) -> list[str]:
        """The modules that the file names; they count from its folder."""
        folder = str(self._file.parent.resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        return [str(name) for name in self._read.get(part, ())]

    @cached_property
    def _read(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            helps = f"give orchestrix_story a Saga and its handlers, or name the file by {SETTING}"
            raise ConfigError(f"there is no {self._file}: {helps}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._file} cannot be read: {error}") from None
