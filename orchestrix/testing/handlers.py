"""Handlers: collects an author's functions into the handler table of a saga."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

from orchestrix.errors import ConfigError
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga
from orchestrix.saga.validation.arguments import brief
from orchestrix.testing.author_settings import Given, settle
from orchestrix.worker.handlers import Handler, HandlerTable, Registration, registered

Part: TypeAlias = Callable[..., Any] | ModuleType | Mapping[str, Handler]
"""A function with `@handles`, a module of them, or functions by their commands."""


def handlers_for(parts: Part | Iterable[Part], saga: Saga, settings: Given | None = None) -> HandlerTable:
    """The handlers of `saga` in `parts`, with their settings; of a module, those of other sagas are left out.

    Raises `ConfigError` for what is not a handler, or one of another saga, and where a command has two.
    """
    catalog, table = Catalog([saga]), HandlerTable()
    known = (*catalog.commands, *catalog.jobs)
    for part in _each(parts):
        if isinstance(part, HandlerTable):
            table.settings.update(part.settings)
        for command, handler in _read(part):
            if command in known:
                table.add(command, handler)
            elif not isinstance(part, ModuleType):
                raise ConfigError(f"saga {saga.name!r} has no command {command}; it has {', '.join(known)}")
    settle(table, settings)
    return table


def _each(parts: Part | Iterable[Part]) -> Iterable[Part]:
    if isinstance(parts, ModuleType | Mapping) or callable(parts):
        return [parts]
    given: object = parts
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{brief(given)} is not a handler: give functions with @handles, their module, or a mapping")
    return given


def _read(part: Part) -> list[tuple[str, Handler]]:
    if isinstance(part, Mapping):
        return list(part.items())
    if not isinstance(part, ModuleType) and not callable(part):
        raise ConfigError(f"{brief(part)} is not a handler: give functions with @handles, their module, or a mapping")
    if isinstance(part, ModuleType):
        values = list(vars(part).values())
        return _found([one for one in registered if any(one.handler is value for value in values)], part.__name__)
    return _found([one for one in registered if one.handler is part], getattr(part, "__qualname__", repr(part)))


def _found(handlers: list[Registration], name: str) -> list[tuple[str, Handler]]:
    if not handlers:
        raise ConfigError(f'{name} handles no command: write @handles("cmd.…") above it, or give {{"cmd.…": function}}')
    return [(one.command, one.handler) for one in handlers]
