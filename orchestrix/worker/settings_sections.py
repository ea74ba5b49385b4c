"""Settings sections: the parts of the configuration that workers' modules declare by a model named `SETTINGS`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from pydantic import BaseModel, RootModel, ValidationError

from orchestrix.config.error_text import nearest, schema_of, sentence
from orchestrix.config.settings import PREFIX, Settings, can_be_section, listed
from orchestrix.errors import ConfigError
from orchestrix.worker.error_mapping import unexpected_error

ATTRIBUTE: Final = "SETTINGS"
SECTION: Final = "section"
CHECK_METHOD: Final = "check"


class SettingsSections:
    """The values of every `SETTINGS` of some modules and of the functions that they define; what `over` has for a
    section replaces what they declare for it.

    Raises `ConfigError` for what is not a model, a section that has two models, and each wrong value.
    """

    def __init__(
        self,
        settings: Settings,
        modules: Iterable[ModuleType],
        functions: Iterable[object] = (),
        over: SettingsSections | None = None,
    ) -> None:
        self._over = frozenset(over._values if over is not None else ())
        self._values: dict[str, BaseModel] = dict(over._values if over is not None else {})
        for module in [*_with_submodules(modules), *filter(None, map(_home, functions))]:
            model = vars(module).get(ATTRIBUTE)
            if model is not None:
                self._add(settings, module, model)

    def __iter__(self) -> Iterator[tuple[str, BaseModel]]:
        return iter(self._values.items())

    @property
    def names(self) -> list[str]:
        """The dotted name of every setting in them."""
        return [f"{section}.{name}" for section, values in self for name in type(values).model_fields]

    def of(self, function: object) -> BaseModel | None:
        """What the module of the function has declared."""
        module = _home(function)
        model = None if module is None else vars(module).get(ATTRIBUTE)
        return None if module is None or model is None else self._values.get(section_of(module, model))

    def check(self, functions: Iterable[object]) -> None:
        """Has the settings of each function's module check that this machine has what they need. Raises
        `ConfigError`."""
        for values in {id(found): found for one in functions if (found := self.of(one)) is not None}.values():
            _, wrong, fix = checked(values)
            if wrong:
                raise ConfigError(f"{wrong}: {fix}" if fix else wrong)

    def _add(self, settings: Settings, module: ModuleType, model: object) -> None:
        where = f"{module.__name__}.{ATTRIBUTE}"
        if not isinstance(model, type) or not issubclass(model, BaseModel) or issubclass(model, RootModel):
            raise ConfigError(f"{where} must be a class below pydantic.BaseModel, with fields")
        section = section_of(module, model)
        if not can_be_section(section):
            raise ConfigError(f"{where}: {section!r} cannot be its section: choose another, section: ClassVar[str] = …")
        known = self._values.get(section)
        if known is None:
            self._values[section] = _made(settings, section, model, where)
        elif type(known) is not model and section not in self._over:
            raise ConfigError(f"{where}: section {section} already has another model: choose another section = …")


def section_of(module: ModuleType, model: Any) -> str:
    """The section of a module's model: what its `section` says, else the module's own name."""
    return str(getattr(model, SECTION, module.__name__.rpartition(".")[2])).lower()


def checked(values: BaseModel) -> tuple[str, str, str]:
    """The result of the `check` of these settings: that all is well, what is wrong, and what to do."""
    check = getattr(values, CHECK_METHOD, None)
    if not callable(check):
        return "", "", ""
    try:
        return str(check() or ""), "", ""
    except (UnicodeError, ValidationError) as wrong:  # whose arguments are not for people
        return "", _unexpected(f"{_called(values)}.{CHECK_METHOD}", wrong), ""
    except ValueError as wrong:
        parts = [*map(str, wrong.args), "", ""]
        return "", parts[0] or "it cannot be used", parts[1]
    except Exception as wrong:
        return "", _unexpected(f"{_called(values)}.{CHECK_METHOD}", wrong), ""


def _called(values: BaseModel) -> str:
    return f"{type(values).__module__}.{type(values).__qualname__}"


def _unexpected(where: str, error: Exception) -> str:
    """The sentence for an error of the author's code that does not concern a value."""
    text = unexpected_error(error)
    return f"{where} raised {text.type}: {text.message}"


def _made(settings: Settings, section: str, model: type[BaseModel], where: str) -> BaseModel:
    origin = settings.origin
    spelled = {name.lower(): name for name in model.model_fields}
    given = origin.sections.get(section, {})
    if model.model_config.get("extra") != "allow":
        _refuse_unknown(settings, section, given, spelled)
    try:
        values = {spelled.get(name.lower(), name): value for name, value in given.items()}
        return model.model_validate({name: _read(value, model, name) for name, value in values.items()})
    except ValidationError as wrong:
        raise ConfigError("; ".join(_sentences(settings, section, model, wrong))) from None
    except Exception as wrong:
        raise ConfigError(_unexpected(where, wrong)) from wrong


def _read(value: object, model: type[BaseModel], name: str) -> object:
    """A string, as variables are, for a field that takes a list or a table: JSON, or names separated by commas."""
    kind = schema_of(model, name).get("type")
    if not isinstance(value, str) or kind not in ("array", "object", None):
        return value
    if value.strip().startswith(("[", "{")):
        with suppress(ValueError):
            return json.loads(value)
    return listed(value) if kind == "array" else value


def _sentences(settings: Settings, section: str, model: type[BaseModel], wrong: ValidationError) -> Iterator[str]:
    """One for each wrong value; what is inside a value is not named."""
    for error in wrong.errors(include_url=False):
        path = error["loc"][:1]
        who = _named(settings, section, str(path[0])) if path else f"[{section}]"
        yield f"{who}: {sentence({**error, 'loc': path}, model)}"


def _refuse_unknown(settings: Settings, section: str, given: Mapping[str, object], spelled: Mapping[str, str]) -> None:
    """Raises `ConfigError` for a name in the file that the model lacks; of an unknown variable, the shell warns."""
    for name in given:
        parts = settings.origin.named.get(f"{section}.{name}", "")
        if name.lower() not in spelled and not parts.startswith(PREFIX):
            meant = nearest(name.lower(), spelled)
            raise ConfigError(f"{parts} is not a setting" + (f": did you mean {spelled[meant]}?" if meant else ""))


def _named(settings: Settings, section: str, name: str) -> str:
    """Under which name a value was given."""
    known = {given.lower(): parts for given, parts in settings.origin.named.items()}
    return known.get(f"{section}.{name}".lower()) or f"{PREFIX}{section}__{name}".upper()


def _home(function: object) -> ModuleType | None:
    return sys.modules.get(str(getattr(function, "__module__", "")))


def _with_submodules(modules: Iterable[ModuleType]) -> Iterator[ModuleType]:
    for module in modules:
        yield module
        inner = f"{module.__name__}."
        yield from [one for name, one in sorted(sys.modules.items()) if name.startswith(inner)]
