"""Settings: all of them, where each value comes from, and whether they fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from orchestrix.config.aliases import ALIASES
from orchestrix.config.error_text import nearest, sentence
from orchestrix.config.file import VARIABLE, ConfigFile
from orchestrix.config.groups import (
    ApiSettings,
    ClusterSettings,
    DatabaseSettings,
    HttpSettings,
    JobsSettings,
    LogSettings,
    OrchestratorSettings,
    SettingsGroup,
    WorkerSettings,
    listed,
)
from orchestrix.config.registry import RegistrySettings
from orchestrix.config.shards import ShardsSettings
from orchestrix.config.telemetry import MetricsSettings, TracesSettings, UiSettings
from orchestrix.errors import ConfigError

__all__ = [
    "ALIASES",
    "PREFIX",
    "ApiSettings",
    "ClusterSettings",
    "DatabaseSettings",
    "HttpSettings",
    "JobsSettings",
    "LogSettings",
    "OrchestratorSettings",
    "RegistrySettings",
    "Settings",
    "ShardsSettings",
    "WorkerSettings",
    "idle_variables",
    "listed",
    "load",
    "names",
    "redacted",
]

PREFIX = "ORCHESTRIX_"
FOREIGN_PREFIXES: Final = frozenset({"ORCHESTRIX_TESTING", "ORCHESTRIX_SOAK", "ORCHESTRIX_CRASH_AT", VARIABLE})
TESTS: Final = "ORCHESTRIX_TEST_"
"""Variables that are no settings: these, and all whose names begin so."""
SHOWN_NAME_CHARS: Final = 100
SHOWN_VARIABLES: Final = 20
"""Characters of a variable's name, and variables without effect, that are shown."""


class Origin(SettingsGroup):
    """Where the settings come from, and those of sections that are not ours.

    `file` is the `orchestrix.toml` that was read, from whose `folder` the names of modules count, and `source` who
    named it; `workers` are the modules that it lists, `listed` the dotted names of all settings in it, and `counting`
    those of them that nothing else has set. `sections` are the values of further sections as they were given, and
    `named` under which name each was.
    """

    file: str | None = None
    folder: str | None = None
    source: str = ""
    workers: tuple[str, ...] = ()
    listed: frozenset[str] = frozenset()
    counting: frozenset[str] = frozenset()
    sections: Mapping[str, Mapping[str, Any]] = {}
    named: Mapping[str, str] = {}


ORIGIN: Final = "origin"
MODULES: Final = ("sagas", "workers", "resources")
"""Lists of importable modules."""
ADDING: Final = ("sagas", "workers")
"""Those to whose modules in the file the environment adds."""

_DRIVERS: Final = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "mysql": "mysql+asyncmy",
    "mariadb": "mysql+asyncmy",
    "sqlite": "sqlite+aiosqlite",
}
"""The scheme with the driver that we use, for those of other programs."""


def _meant_database(url: str) -> str:
    """What to write instead: the same with our driver where the scheme shows which, without the password."""
    scheme, mark, rest = url.partition("://")
    ours = _DRIVERS.get(scheme.partition("+")[0].lower()) if mark else None
    if ours is None:
        return "write sqlite+aiosqlite://…, postgresql+asyncpg://… or mysql+asyncmy://…"
    return f"write {redacted(f'{ours}://{rest}')}"


class Settings(SettingsGroup):
    """Every setting. Read from `ORCHESTRIX_…`, nested with `__`; the names of `ALIASES` stand in for some of them."""

    database_url: str | None = None
    broker_url: str | None = None
    api_url: str | None = None
    node_id: str = "coordinator"
    sagas: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    http: HttpSettings = HttpSettings()
    api: ApiSettings = ApiSettings()
    log: LogSettings = LogSettings()
    database: DatabaseSettings = DatabaseSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    worker: WorkerSettings = WorkerSettings()
    cluster: ClusterSettings = ClusterSettings()
    jobs: JobsSettings = JobsSettings()
    registry: RegistrySettings = RegistrySettings()
    shards: ShardsSettings = ShardsSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TracesSettings = TracesSettings()
    ui: UiSettings = UiSettings()
    origin: Origin = Field(default=Origin(), exclude=True, repr=False)

    @field_validator("sagas", "workers", "resources", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return listed(value)

    @field_validator("node_id")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", value):
            raise ValueError("write 1 to 40 letters, digits, dots, - or _, starting with a letter or a digit")
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str | None) -> str | None:
        if value and not value.startswith(("sqlite+aiosqlite://", "postgresql+asyncpg://", "mysql+asyncmy://")):
            raise ValueError(_meant_database(value))
        return value or None

    @field_validator("broker_url")
    @classmethod
    def _known_broker(cls, value: str | None) -> str | None:
        if value and value != "embedded" and not value.startswith(("amqp://", "amqps://")):
            raise ValueError("write amqp://…, amqps://… or embedded")
        return value or None

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.worker.window < self.worker.concurrency:
            raise ValueError(
                f"worker.prefetch ({self.worker.prefetch}) is below worker.concurrency ({self.worker.concurrency}), "
                "so some slots would never get work: raise the first or lower the second"
            )
        if self.api.tokens and self.api.auth == "none":
            raise ValueError("api.tokens is set, but api.auth is none: unset one of them")
        return self


def load(environ: Mapping[str, str] | None = None, *, file: ConfigFile | None = None, **flags: Any) -> Settings:
    """The settings of this process: `flags` (nested names as `http__port`) come before `ORCHESTRIX_…`, which come
    before `file`, which comes before an alias. Modules of `ORCHESTRIX_SAGAS` and `ORCHESTRIX_WORKERS` are added to
    those of `file`. Raises `ConfigError` that names each wrong value.
    """
    env = os.environ if environ is None else environ
    merged = _Merged()
    for alias, setting in ALIASES.items():
        if alias in env:
            merged.put(setting.split("."), env[alias], alias)
    if file is not None:
        merged.put_file(file)
    for key, text in env.items():
        if path := _path(key):
            merged.put(path, text, key)
    for flag, value in flags.items():
        if value is not None:
            merged.put(flag.split("__"), value, "--" + flag.split("__")[-1].replace("_", "-"))
    return merged.settings()


class _Merged:
    """Values by their places, the last one put counts; and under which name each was given."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._named: dict[str, str] = {}
        self._sections: dict[str, dict[str, Any]] = {}
        self._workers: tuple[str, ...] = ()
        self._listed: dict[str, str] = {}
        self._file: ConfigFile | None = None

    def put(self, path: Sequence[str], value: Any, name: str) -> None:
        """`value` for the setting at `path`, or for one of a section that is not ours."""
        if len(path) > 1 and path[0] not in Settings.model_fields:
            self._sections.setdefault(path[0], {})[path[1]] = value
        elif len(path) > 1:
            self._values.setdefault(path[0], {})[path[1]] = value
        else:
            self._values[path[0]] = self._added(path[0], value)
        self._named[".".join(path)] = name

    def put_file(self, file: ConfigFile) -> None:
        """All settings of the file. Raises `ConfigError` for a name that no setting has."""
        self._file = file
        for key, value in file.values.items():
            group = _group_called(key)
            if isinstance(value, Mapping) and (group is not None or key not in Settings.model_fields):
                for name, inner in value.items():
                    _check_known(file, name, group.attributes() if group is not None else None, f"[{key}] ")
                    self._list(file, [key, name], inner)
            else:
                _check_known(file, key, [name for name in Settings.model_fields if name != ORIGIN])
                _check_form(file, key, value)
                self._list(file, [key], value)

    def _list(self, file: ConfigFile, path: Sequence[str], value: Any) -> None:
        name = ".".join(path)
        self._listed[name] = f"{file.path.name}: {name}"
        self.put(path, value, self._listed[name])
        if name == "workers":
            self._workers = tuple(self._values[name])

    def settings(self) -> Settings:
        """Raises `ConfigError` that names each wrong value."""
        file = self._file
        origin = Origin(
            file=str(file.path) if file is not None else None,
            folder=str(file.folder) if file is not None else None,
            source=file.source if file is not None else "",
            workers=self._workers,
            listed=frozenset(self._listed),
            counting=frozenset(name for name, given in self._listed.items() if self._named[name] == given),
            sections=self._sections,
            named={name: given for name, given in self._named.items() if name.partition(".")[0] in self._sections},
        )
        return _validated({**self._values, ORIGIN: origin}, self._named)

    def _added(self, name: str, value: Any) -> Any:
        """Modules are added to those that are there already; anything else replaces what is there."""
        parts = listed(value)
        if name not in ADDING or not isinstance(parts, tuple | list):
            return value
        return tuple(dict.fromkeys([*self._values.get(name, ()), *parts]))


def _check_known(file: ConfigFile, name: str, known: Iterable[str] | None, section: str = "") -> None:
    if known is None or name in (known := list(known)):
        return
    meant = nearest(name, known)
    raise ConfigError(
        f"{file.path}: {section}{name[:SHOWN_NAME_CHARS]} is not a setting"
        + (f": did you mean {meant}?" if meant else "")
    )


def _check_form(file: ConfigFile, name: str, value: object) -> None:
    """Raises `ConfigError` for what can be no section, and no list of modules, where one is expected."""
    where = f"{file.path.name}: {name}"
    if _group_called(name) is not None:
        raise ConfigError(f"{where}: write a section [{name}]")
    if name not in MODULES or isinstance(value, str):
        return
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f'{where}: write a list of module names, e.g. {name} = ["shop.{name}"]')


def idle_variables(environ: Mapping[str, str] | None = None, claimed: Collection[str] | None = None) -> list[str]:
    """A sentence for each `ORCHESTRIX_…` variable without effect, with the nearest name where one is really near.

    `claimed` are the names of settings in sections that are not ours; without it, nothing is said of such sections
    unless one of ours was meant.
    """
    known = [*names(), *(claimed or ())]
    variables = [*(PREFIX + name.upper().replace(".", "__") for name in known), VARIABLE]
    env = os.environ if environ is None else environ
    unknown = [key for key in env if _is_unknown(key, variables, claimed=claimed is not None)]
    sentences = [
        f"{key[:SHOWN_NAME_CHARS]} {_unknown(key[:SHOWN_NAME_CHARS], variables)}"
        for key in sorted(unknown)[:SHOWN_VARIABLES]
    ]
    if len(unknown) > SHOWN_VARIABLES:
        sentences.append(f"{len(unknown) - SHOWN_VARIABLES} more ORCHESTRIX_ variables are not settings")
    if "ORCHESTRIX_CRASH_AT" in env and env.get("ORCHESTRIX_TESTING") != "1":
        sentences.append("ORCHESTRIX_CRASH_AT is ignored without ORCHESTRIX_TESTING=1")
    return sentences


def _is_unknown(key: str, variables: Collection[str], *, claimed: bool) -> bool:
    if not _is_ours(key) or key.upper() in variables:
        return False
    path = _path(key)
    return claimed or path is None or _nearest(key, variables) is not None


def _unknown(key: str, known: Collection[str]) -> str:
    found = _nearest(key, known)
    return f"is not a setting: did you mean {PREFIX}{found}?" if found else "is not a setting"


def _nearest(key: str, known: Collection[str]) -> str | None:
    return nearest(key.upper().removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in known])


def names() -> list[str]:
    """Every setting's dotted name."""
    found = []
    for name in Settings.model_fields:
        group = _group_called(name)
        if group is not None:
            found += [f"{name}.{inner}" for inner in group.attributes()]
        elif name != ORIGIN:
            found.append(name)
    return found


def _group_called(name: str) -> type[SettingsGroup] | None:
    """The group of settings with that name, if there is one."""
    group = Settings.model_fields[name].annotation if name in Settings.model_fields and name != ORIGIN else None
    return group if isinstance(group, type) and issubclass(group, SettingsGroup) else None


def redacted(url: str) -> str:
    """`url` without its password and without what its query calls a password, secret or token.

    Raises `ValueError` for what is no URL.
    """
    parts = urlsplit(url)
    if parts.netloc and "@" not in parts.netloc and "@" in url:
        # A password with a bare `/`, `?` or `#` in it: what looks like the host is part of the login.
        return f"{parts.scheme}://***@{redacted('//' + url.rpartition('@')[2])[2:]}"
    login, at, place = parts.netloc.rpartition("@")
    netloc = f"{login.partition(':')[0]}:***{at}{place}" if ":" in login else parts.netloc
    return _QUERY_SECRET.sub(_hide, url.replace(parts.netloc, netloc, 1))


_QUERY_SECRET: Final = re.compile(r"(?<=[?&;#])([^=&;#]*)=([^&;#]*)")


def _hide(field: re.Match[str]) -> str:
    name = unquote(field[1]).lower()
    return f"{field[1]}=***" if any(word in name for word in ("password", "passwd", "secret", "token")) else field[0]


def _is_ours(key: str) -> bool:
    """Whether a variable of that name is for settings."""
    name = key.upper()
    return name.startswith(PREFIX) and not name.startswith(TESTS) and key not in FOREIGN_PREFIXES


def can_be_section(name: str) -> bool:
    """Whether a section that is not ours can have that name: a variable must be able to name what is in it."""
    return (
        name.isidentifier() and name not in Settings.model_fields and _path(f"{PREFIX}{name}__x".upper()) == [name, "x"]
    )


def _path(key: str) -> list[str] | None:
    """The place of the value of a variable: of a setting, or of one in a section that is not ours."""
    if not _is_ours(key):
        return None
    path = key[len(PREFIX) :].lower().split("__")
    foreign = len(path) == 2 and all(path) and path[0] not in Settings.model_fields
    return path if foreign or ".".join(path) in names() else None


def _validated(values: dict[str, Any], named: Mapping[str, str]) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as wrong:
        raise ConfigError("; ".join(_sentence(dict(one), named) for one in wrong.errors(include_url=False))) from None


def _sentence(error: dict[str, Any], named: Mapping[str, str]) -> str:
    """What is wrong with a value, under the name by which it was given."""
    setting = _setting_at([str(part) for part in error["loc"]])
    whole = not setting or (setting in Settings.model_fields and setting not in names())
    who = named.get(setting) or ("the settings" if whole else PREFIX + setting.upper().replace(".", "__"))
    return f"{who}: {sentence({**error, 'loc': setting.split('.')}, _group_of(setting))}"


def _setting_at(path: Sequence[str]) -> str:
    """The dotted name of the setting in which that place is; what is in its value has no name."""
    return ".".join(path[: 1 if path and _group_called(path[0]) is None else 2])


def _group_of(setting: str) -> type[BaseModel]:
    """The group that the setting is in."""
    first, _, name = setting.partition(".")
    return (_group_called(first) if name else None) or Settings
