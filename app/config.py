"""Which settings are there, where does each value come from, and do they fit together?"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from app.errors import ConfigError

PREFIX = "ORCHESTRIX_"
OUTSIDE = ("ORCHESTRIX_TEST_", "ORCHESTRIX_TESTING", "ORCHESTRIX_SOAK", "ORCHESTRIX_CRASH_AT")
ALIASES = {"PORT": "http.port", "LOG_LEVEL": "log.level", "PROCESS_NAME": "node_id"}
"""Usual names that stand in for ours. `NODE_ENV` is no setting: it may say `development`, `production` or anything else,
and changes nothing, for there is one way to run."""


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HttpSettings(_Group):
    """Where the API listens."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)


class LogSettings(_Group):
    """What is logged. `auto` is pretty on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "pretty"] = "auto"

    @field_validator("level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


class WorkerSettings(_Group):
    """How much a worker does at once, and how long it may take to stop, in seconds.

    A command that came `max_deliveries` times before is not worked on: it seems to end every worker that tries.
    """

    concurrency: int = Field(10, ge=1, le=1000)
    prefetch: int | None = Field(None, ge=1, le=5000)
    max_deliveries: int = Field(19, ge=1)
    stop_timeout: float = Field(30.0, gt=0)

    @property
    def window(self) -> int:
        """How many messages a queue hands over ahead of the work."""
        return self.prefetch or max(50, 2 * self.concurrency)


class OrchestratorSettings(_Group):
    """The hot path: sizes in rows, times in seconds."""

    batch: int = Field(500, ge=1, le=5000)
    linger: float = Field(0.003, ge=0, le=0.1)
    claim: float = Field(15.0, ge=1)
    wait_cap: float = Field(600.0, ge=1)


class DatabaseSettings(_Group):
    """The pool of one process."""

    pool_size: int = Field(10, ge=2, le=200)


class GitSettings(_Group):
    """Where `cmd.createGitRepo` makes its repositories."""

    provider: Literal["local", "simulated", "none"] = "local"
    root: str = ".orchestrix/repos"


class RegistrationSettings(_Group):
    """What `cmd.registerApp` does."""

    provider: Literal["database", "simulated", "none"] = "database"


class Settings(_Group):
    """Every setting. Read from `ORCHESTRIX_…`, nested with `__`; the names of `ALIASES` stand in for some of them."""

    database_url: str | None = None
    broker_url: str | None = None
    api_url: str | None = None
    node_id: str = Field("node", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")
    sagas: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    database: DatabaseSettings = DatabaseSettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    worker: WorkerSettings = WorkerSettings()
    git: GitSettings = GitSettings()
    registration: RegistrationSettings = RegistrationSettings()

    @field_validator("sagas", "workers", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str | None) -> str | None:
        if value and not value.startswith(("sqlite+aiosqlite://", "postgresql+asyncpg://", "mysql+asyncmy://")):
            raise ValueError("write sqlite+aiosqlite://…, postgresql+asyncpg://… or mysql+asyncmy://…")
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
                "so part of the worker would never have work: raise the one or lower the other"
            )
        return self


def load(environ: Mapping[str, str] | None = None, **flags: Any) -> Settings:
    """The settings of this process: `flags` (nested names as `http__port`) beat `ORCHESTRIX_…`, which beats an alias.

    Raises `ConfigError` that names each wrong value.
    """
    merged: dict[str, Any] = {}
    named: dict[str, str] = {}
    env = os.environ if environ is None else environ
    for alias, setting in ALIASES.items():
        if alias in env:
            _put(merged, setting.split("."), env[alias])
            named[setting] = alias
    for key, text in env.items():
        if path := _path(key):
            _put(merged, path, text)
            named[".".join(path)] = key
    for flag, value in flags.items():
        if value is not None:
            _put(merged, flag.split("__"), value)
            named[flag.replace("__", ".")] = "--" + flag.split("__")[-1].replace("_", "-")
    return _validated(merged, named)


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each `ORCHESTRIX_…` variable that means nothing, with the nearest name that does."""
    known = [PREFIX + name.upper().replace(".", "__") for name in names()]
    env = os.environ if environ is None else environ
    strange = [
        key
        for key in env
        if key.upper().startswith(PREFIX) and not key.startswith(OUTSIDE) and key.upper() not in known
    ]
    sentences = []
    for key in sorted(strange):
        near = difflib.get_close_matches(key.upper(), known, n=1, cutoff=0.6)
        sentences.append(f"{key} is no setting" + (f": did you mean {near[0]}?" if near else ""))
    return sentences


def names() -> list[str]:
    """Every setting's dotted name."""
    found = []
    for name, info in Settings.model_fields.items():
        group = info.annotation
        if isinstance(group, type) and issubclass(group, _Group):
            found += [f"{name}.{inner}" for inner in group.model_fields]
        else:
            found.append(name)
    return found


def redacted(url: str) -> str:
    """`url` with its password hidden."""
    parts = urlsplit(url)
    if parts.password is None:
        return re.sub(r"(password|passwd|secret)=[^&]+", r"\1=***", url)
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@", 1)))


def _path(key: str) -> list[str] | None:
    if not key.upper().startswith(PREFIX):
        return None
    path = key[len(PREFIX) :].lower().split("__")
    return path if ".".join(path) in names() else None


def _put(merged: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        merged = merged.setdefault(part, {})
    merged[path[-1]] = value


def _validated(values: dict[str, Any], named: Mapping[str, str]) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as wrong:
        lines = [_sentence(dict(error), named) for error in wrong.errors(include_url=False)]
        raise ConfigError("; ".join(lines)) from None


def _sentence(error: dict[str, Any], named: Mapping[str, str]) -> str:
    """What is wrong with a value, under the name by which it was given."""
    setting = ".".join(str(part) for part in error["loc"])
    who = named.get(setting) or (PREFIX + setting.upper().replace(".", "__") if setting else "the settings")
    return f"{who}: {str(error['msg']).removeprefix('Value error, ')}"
