"""Project: the sagas and handlers that an orchestrix.toml names, for the scenarios of its tests."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from orchestrix.bootstrap.factories import load_catalog
from orchestrix.config import file as config_file
from orchestrix.config import settings
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga
from orchestrix.worker.author_code import AuthorCode, load_author_code
from orchestrix.worker.handlers import HandlerTable


class AuthorProject:
    """What the file in `folder` names, or the one that ORCHESTRIX_CONFIG names. It is imported on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def saga(self, name: str) -> Saga:
        """The saga of that name. Raises `ConfigError` if there is none, or no file."""
        sagas = {saga.name: saga for saga in load_catalog(self._settings)}
        if name not in sagas:
            raise ConfigError(f"{self._settings.origin.file} has no saga {name!r}: it has {', '.join(sagas) or 'none'}")
        return sagas[name]

    def handlers(self, saga: Saga) -> HandlerTable:
        """The handlers of `saga`, with their settings. Raises `ConfigError` for what cannot be imported."""
        catalog, found = Catalog([saga]), self._work
        known = (*catalog.commands, *catalog.jobs)
        table = HandlerTable((command, handler) for command, handler in found.handlers.items() if command in known)
        table.settings = {command: found.sections.of(handler) for command, handler in table.items()}
        return table

    @cached_property
    def _work(self) -> AuthorCode:
        return load_author_code(self._settings)

    @cached_property
    def _settings(self) -> Settings:
        file = config_file.found(None, os.environ, self._folder, installed=False)
        if file is None:
            helps = f"give orchestrix_story a Saga and its handlers, or set {config_file.VARIABLE}"
            raise ConfigError(f"{self._folder / config_file.NAME} does not exist: {helps}")
        return settings.load(file=file)
