"""Module loader: imports the sagas, resources, handlers and jobs of the user's own modules."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from orchestrix.config.file import NAME
from orchestrix.errors import ConfigError, OrchestrixError
from orchestrix.resource import Resource
from orchestrix.saga.definition import Saga
from orchestrix.worker.error_mapping import unexpected_error
from orchestrix.worker.function_checks import LIBRARY_PACKAGES, is_ours
from orchestrix.worker.handlers import HandlerTable, registered
from orchestrix.worker.jobs.functions import JobTable, registered_jobs

SAGAS: Final = "ORCHESTRIX_SAGAS"
WORKERS: Final = "ORCHESTRIX_WORKERS"
RESOURCES: Final = "ORCHESTRIX_RESOURCES"
LIBRARY_LOGGER: Final = "orchestrix"


@contextmanager
def protected_logging() -> Iterator[None]:
    """After the block our loggers, and the handlers that were there before, are restored.

    `logging.config.dictConfig` disables every logger that exists and takes the root's handlers away; `logging.disable`
    stops all. What the block has added stays.
    """
    root = logging.getLogger()
    before, level, least = [(one, one.level) for one in root.handlers], root.level, root.manager.disable
    states = {name: one.level for name, one in _ours().items()}
    try:
        yield
    finally:
        logging.disable(least)
        _set_level(root, level)
        root.disabled = False
        for handler, threshold in before:
            handler.setLevel(threshold)
            if handler not in root.handlers:
                root.addHandler(handler)
        for name, logger in _ours().items():
            logger.disabled, logger.propagate = False, True
            _set_level(logger, states.get(name, logging.NOTSET))


def _set_level(logger: logging.Logger, level: int) -> None:
    if logger.level != level:  # each change empties a cache of every logger
        logger.setLevel(level)


def _ours() -> dict[str, logging.Logger]:
    known = logging.getLogger().manager.loggerDict
    names = [name for name in known if name.partition(".")[0] == LIBRARY_LOGGER]
    return {name: one for name in names if isinstance(one := known[name], logging.Logger)}


def named_in(setting: str, folder: str | None) -> str:
    """Where the modules of a list are named, for people: its variable or, where `folder` has a settings file, that file
    too."""
    return setting if folder is None else f"{setting} or {NAME}"


def load_sagas(names: Sequence[str], folder: str | None = None) -> list[Saga]:
    """Every saga at the top level of the modules. `folder` is where their names count from, before any other place.

    Raises `ConfigError` that names the module and says what is wrong with it.
    """
    found: dict[int, Saga] = {}
    where = named_in(SAGAS, folder)
    for module in load_modules(names, SAGAS, folder):
        sagas = [value for value in vars(module).values() if isinstance(value, Saga)]
        if not sagas:
            raise ConfigError(f"{where}: {_where(module)} has no saga at its top level: write NAME = Saga(…) there")
        found |= {id(saga): saga for saga in sagas}
    return list(found.values())


def load_resources(names: Sequence[str], folder: str | None = None) -> list[Resource]:
    """Every resource at the top level of the modules.

    Raises `ConfigError` that names the module and says what is wrong with it.
    """
    found: dict[str, Resource] = {}
    where = named_in(RESOURCES, folder)
    for module in load_modules(names, RESOURCES, folder):
        theirs = [value for value in vars(module).values() if isinstance(value, Resource)]
        if not theirs:
            raise ConfigError(f"{where}: {_where(module)} has no Resource at its top level: write NAME = Resource(…)")
        for one in theirs:
            if found.setdefault(one.path, one) is not one:
                raise ConfigError(f"{where}: {_where(module)} has two Resources at {one.path}: change one path")
    return list(found.values())


def load_handlers(names: Sequence[str], folder: str | None = None) -> HandlerTable:
    """The handlers that the modules define or import by name.

    Raises `ConfigError` that names the module and says what is wrong with it: it may have jobs alone, but not nothing.
    """
    table = HandlerTable()
    for module in load_modules(names, WORKERS, folder):
        theirs = [one for one in registered if _belongs(one.handler, module)]
        if not theirs and not any(_belongs(one.function, module) for one in registered_jobs):
            what = 'has no handler and no job: write @handles("cmd.…") or @job("…") above a function'
            raise ConfigError(f"{named_in(WORKERS, folder)}: {_where(module)} {what}")
        for command, handler in theirs:
            table.add(command, handler)
    return table


def load_jobs(names: Sequence[str], folder: str | None = None) -> JobTable:
    """The jobs that the modules define or import by name.

    Raises `ConfigError` that names the module and says what is wrong with it, or where a job has two functions.
    """
    modules = load_modules(names, WORKERS, folder)
    return JobTable(one for one in registered_jobs if any(_belongs(one.function, module) for module in modules))


def load_modules(names: Sequence[str], setting: str, folder: str | None = None) -> list[ModuleType]:
    """Imports the modules that `setting` names; `folder` is looked through first, the working directory last.

    Raises `ConfigError`, whose cause is the module's own error.
    """
    if names and folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    if names and not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    return [_load(name, named_in(setting, folder), folder) for name in names]


def _load(name: str, setting: str, folder: str | None) -> ModuleType:
    if (top := _top(name)) in LIBRARY_PACKAGES:
        raise ConfigError(f"{setting}: {name!r} cannot be loaded: {top!r} is a package of Orchestrix; rename yours")
    try:
        with protected_logging():
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"{setting}: module {name!r} cannot be imported: {_cause(name, error, folder)}") from error


def _cause(name: str, error: BaseException, folder: str | None) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        slots = " or in ".join(dict.fromkeys(filter(None, (folder, os.getcwd()))))
        return f"no module {error.name!r} in {slots} or on the Python path"
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    text = _import_problem(error)
    return " ".join(f"{text} ({_author_line(error)})".split())


def _import_problem(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it imports {error.name!r}, which Python does not find"
    text = unexpected_error(error)
    return text.message if isinstance(error, OrchestrixError) else f"{text.type}: {text.message}"


def _author_line(error: BaseException) -> str:
    """The last line that ran and is not one of ours: the author's, or that of a library that the author called."""
    frames = traceback.walk_tb(error.__traceback__)
    theirs = [(frame, line) for frame, line in frames if not is_ours(frame)]
    frame, line = theirs[-1]
    return f"{frame.f_code.co_filename}, line {line}"


def _top(name: str) -> str:
    return name.partition(".")[0]


def _belongs(handler: object, module: ModuleType) -> bool:
    home = str(getattr(handler, "__module__", ""))
    return f"{home}.".startswith(f"{module.__name__}.") or any(handler is value for value in vars(module).values())


def _where(module: ModuleType) -> str:
    return f"module {module.__name__!r} ({getattr(module, '__file__', None) or 'built in'})"
