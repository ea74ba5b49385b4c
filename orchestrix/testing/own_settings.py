"""Own settings: what handlers of a story read as `context.settings`, their modules' `SETTINGS`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

from orchestrix.config import Origin, Settings
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.sections import ATTRIBUTE, Sections

Given: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Values by section and name, as in an orchestrix.toml."""


def settings_of(function: object, given: Given | None) -> object:
    """What the function's module has declared, with these values. Raises `ConfigError` for what the model refuses.

    None if it declares no model: a test may call what it likes `SETTINGS`.
    """
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    if not isinstance(getattr(module, ATTRIBUTE, None), type):
        return None
    origin = Origin(sections={name: dict(values) for name, values in (given or {}).items()})
    return Sections(Settings(origin=origin), (), (function,)).of(function)


def settle(table: HandlerTable, given: Given | None) -> None:
    """Gives each handler the settings that it does not have yet. Raises `ConfigError`."""
    for command, handler in table.items():
        if given is not None or table.settings.get(command) is None:
            table.settings[command] = settings_of(handler, given)
