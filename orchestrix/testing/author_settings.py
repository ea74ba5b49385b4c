"""Author settings: what the handlers of a scenario read as `context.settings`, from their modules' `SETTINGS`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel

from orchestrix.config.error_text import nearest
from orchestrix.config.settings import Origin, Settings
from orchestrix.errors import ConfigError
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.settings_sections import ATTRIBUTE, SettingsSections, section_of

Given: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Values by section and name, as in an orchestrix.toml."""


def settings_of(function: object, given: Given | None, project: object = None) -> object:
    """What the function's module has declared, with these values taking precedence over the project's.

    None if it declares no model: a test may use the name `SETTINGS` freely. Raises `ConfigError` for what the model
    rejects.
    """
    declared = _declared(function)
    if declared is None:
        return None
    section, model = declared
    if project is not None and section not in (given or {}):
        return project
    values = {**_set(project), **(given or {}).get(section, {})}
    names = [f"{section}.{name}" for name in [*getattr(model, "model_fields", ()), *values]]
    named = {name: f"settings: {name}" for name in names}
    origin = Origin(sections={section: values}, named=named)
    return SettingsSections(Settings(origin=origin), (), (function,)).of(function)


def settle(table: HandlerTable, given: Given | None) -> None:
    """Sets the settings of each handler. Raises `ConfigError`, also for a section that none of their modules
    declares."""
    check_sections(table.values(), given)
    for command, handler in table.items():
        table.settings[command] = settings_of(handler, given, table.settings.get(command))


def check_sections(functions: Iterable[object], given: Given | None) -> None:
    """Raises `ConfigError` for a section that the module of none of the functions declares."""
    known = sorted({declared[0] for one in functions if (declared := _declared(one)) is not None})
    for section in given or {}:
        if section not in known:
            meant = nearest(section, known)
            hint = f"did you mean {meant}?" if meant else f"known: {', '.join(known) or 'none'}"
            raise ConfigError(f"settings: no module of these functions declares the section {section!r}: {hint}")


def _declared(function: object) -> tuple[str, type[BaseModel]] | None:
    """The section of the function's module, and its model."""
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    model = getattr(module, ATTRIBUTE, None)
    if module is None or not isinstance(model, type):
        return None
    return section_of(module, model), model


def _set(project: object) -> Mapping[str, Any]:
    """The values that a project gives, without those that are the model's own defaults."""
    if not isinstance(project, BaseModel):
        return {}
    return {name: getattr(project, name) for name in project.model_fields_set}
