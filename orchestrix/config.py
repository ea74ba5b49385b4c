"""Which settings are there, where does each value come from, and do they fit together?"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from orchestrix.config_tokens import SECRET, tokens_of
from orchestrix.config_words import nearest, sentence
from orchestrix.errors import ConfigError

PREFIX = "ORCHESTRIX_"
OUTSIDE = ("ORCHESTRIX_TEST_", "ORCHESTRIX_TESTING", "ORCHESTRIX_SOAK", "ORCHESTRIX_CRASH_AT")
LONGEST_NAME: Final = 100
MOST_TOLD: Final = 20
"""Characters of a variable's name, and variables without effect, that are told."""
ALIASES = {"PORT": "http.port", "LOG_LEVEL": "log.level", "PROCESS_NAME": "node_id"}
"""Usual names that stand in for ours. `NODE_ENV` is no setting: it may say `development`, `production` or anything
else, and changes nothing, for there is one way to run."""


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Seconds = Annotated[float, Field(ge=0.01, le=2_592_000)]
"""A time of up to thirty days: what is shorter or longer is a slip, and would stop the process or never end."""


class HttpSettings(_Group):
    """Where the API listens, and how much of it one may take; times in seconds.

    `allowed_hosts` are names, beside those of loopback, by which it may be called while it asks nobody for a token.
    `keep_alive` is longer than clients and load balancers keep a connection (60 s at most by default): a server that
    closes first loses the request that its client is just sending. Without `max_connections` it is what the limit of
    open files allows; `max_streams` are the long-polls and event streams of one client.
    """

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    head_timeout: float = Field(10.0, ge=1, le=3600)
    body_timeout: float = Field(30.0, ge=1, le=3600)
    keep_alive: float = Field(75.0, ge=1, le=3600)
    max_connections: int | None = Field(None, ge=8, le=1_000_000)
    max_streams: int = Field(1000, ge=1, le=1_000_000)

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return listed(value)

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not _HOST.fullmatch(one):
                raise ValueError(
                    "write names of hosts with commas in between, such as orchestrix.example,10.0.0.7:8080"
                )
        return value


_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}))(?::[0-9]{1,5})?")


def listed(value: object) -> object:
    """The parts of a text with commas; anything else as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class ApiSettings(_Group):
    """Who may use the API. `tokens` are the secrets that it takes, by the names of those who have them.

    Without tokens it is open to whoever reaches it; `auth` says `none` where that is meant. `token` is the secret that
    the client commands send.
    """

    tokens: Mapping[str, SecretStr] = {}
    auth: Literal["token", "none"] = "token"
    token: SecretStr | None = None

    @field_validator("tokens", mode="before")
    @classmethod
    def _read_tokens(cls, value: object) -> object:
        return tokens_of(value) if isinstance(value, str) else value

    @field_validator("token")
    @classmethod
    def _sendable(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not SECRET.fullmatch(value.get_secret_value()):
            raise ValueError("a secret is visible ASCII characters without a comma")
        return value or None


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

    It does `concurrency` commands and as many jobs: neither takes the other's place. A command that came
    `max_deliveries` times before is not worked on: it seems to end every worker that tries.
    """

    concurrency: int = Field(10, ge=1, le=1000)
    prefetch: int | None = Field(None, ge=1, le=5000)
    max_deliveries: int = Field(19, ge=1, le=1_000_000)
    stop_timeout: Seconds = 30.0

    @property
    def window(self) -> int:
        """How many messages a queue hands over ahead of the work."""
        return self.prefetch or max(50, 2 * self.concurrency)


class OrchestratorSettings(_Group):
    """The hot path: sizes in rows, times in seconds.

    `timeouts_per_second` is how many steps may fail by deadline in a second, over all nodes;
    `dead_letters_per_minute` how many dead letters a node takes into the database: the others stay in their queues.
    """

    batch: int = Field(500, ge=1, le=5000)
    claim: float = Field(15.0, ge=1, le=3600)
    timeouts_per_second: float = Field(50.0, ge=0.01, le=1_000_000)
    dead_letters_per_minute: int = Field(1000, ge=1, le=1_000_000)


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


class ClusterSettings(_Group):
    """How nodes watch each other and hand over, in seconds (`handoff_retries`: how often at most).

    `presence` is the time between two pings that both say that a node is gone.
    """

    heartbeat: Seconds = 10.0
    dead: Seconds = 30.0
    lease: Seconds = 30.0
    renew: Seconds = 10.0
    handoff_ack: Seconds = 5.0
    handoff_retries: int = Field(3, ge=1, le=1000)
    handoff_hard: Seconds = 60.0
    orphan_check: Seconds = 30.0
    reconcile: Seconds = 10.0
    presence: Seconds = 2.0

    @model_validator(mode="after")
    def _consistent(self) -> ClusterSettings:
        _under_half("cluster.renew", self.renew, "cluster.lease", self.lease, "one lost renewal would end a leadership")
        _under_half("cluster.heartbeat", self.heartbeat, "cluster.dead", self.dead, "one lost beat would be a death")
        asking = self.handoff_ack * self.handoff_retries
        if self.handoff_hard <= asking:
            raise ValueError(
                f"cluster.handoff_hard ({self.handoff_hard:g}) is not above cluster.handoff_ack x "
                f"cluster.handoff_retries ({asking:g}), so a node would end while it still waits for answers: "
                "raise the first or lower the others"
            )
        if self.presence >= self.dead:
            raise ValueError(
                f"cluster.presence ({self.presence:g}) is not below cluster.dead ({self.dead:g}), so it would never "
                "tell anything sooner: lower the one or raise the other"
            )
        return self


class JobsSettings(_Group):
    """How many jobs may run at once in the cluster, and how a worker holds its own, in seconds.

    Of the log of one job `log_lines` lines are kept, and `log_bytes` bytes of their messages.
    """

    max_live: int = Field(1000, ge=1, le=1_000_000)
    beat: Seconds = 10.0
    silent: Seconds = 30.0
    log_lines: int = Field(100_000, ge=1, le=2**53)
    log_bytes: int = Field(64 * 1024 * 1024, ge=1, le=2**53)

    @model_validator(mode="after")
    def _consistent(self) -> JobsSettings:
        _under_half("jobs.beat", self.beat, "jobs.silent", self.silent, "one lost beat would be a lost job")
        return self


def _under_half(name: str, value: float, of: str, limit: float, or_else: str) -> None:
    if value >= limit / 2:
        raise ValueError(
            f"{name} ({value:g}) is not under half of {of} ({limit:g}), so {or_else}: lower the one or raise the other"
        )


class Settings(_Group):
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
    git: GitSettings = GitSettings()
    registration: RegistrationSettings = RegistrationSettings()
    cluster: ClusterSettings = ClusterSettings()
    jobs: JobsSettings = JobsSettings()

    @field_validator("sagas", "workers", "resources", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return listed(value)

    @field_validator("node_id")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", value):
            raise ValueError("write 1 to 40 letters, digits, dots, - or _, of which the first is a letter or a digit")
        return value

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
        if self.api.tokens and self.api.auth == "none":
            raise ValueError("api.tokens names who may use the API, but api.auth is none: unset the one or the other")
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


def idle_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each `ORCHESTRIX_…` variable without effect, with the nearest name where one is really near."""
    known = [PREFIX + name.upper().replace(".", "__") for name in names()]
    env = os.environ if environ is None else environ
    strange = [
        key
        for key in env
        if key.upper().startswith(PREFIX) and not key.startswith(OUTSIDE) and key.upper() not in known
    ]
    sentences = [f"{key[:LONGEST_NAME]} {_unknown(key[:LONGEST_NAME], known)}" for key in sorted(strange)[:MOST_TOLD]]
    if len(strange) > MOST_TOLD:
        sentences.append(f"{len(strange) - MOST_TOLD} more ORCHESTRIX_ variables are no settings")
    if "ORCHESTRIX_CRASH_AT" in env and env.get("ORCHESTRIX_TESTING") != "1":
        sentences.append("ORCHESTRIX_CRASH_AT is ignored: it works only together with ORCHESTRIX_TESTING=1")
    return sentences


def _unknown(key: str, known: Sequence[str]) -> str:
    found = nearest(key.upper().removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in known])
    return f"is no setting: did you mean {PREFIX}{found}?" if found else "is no setting"


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
    """`url` without its password and without what its query calls a password, secret or token.

    Raises `ValueError` for what is no URL.
    """
    parts = urlsplit(url)
    if parts.netloc and "@" not in parts.netloc and "@" in url:
        # A password with a bare `/`, `?` or `#` in it: what looks like the host is the beginning of the login.
        return f"{parts.scheme}://***@{redacted('//' + url.rpartition('@')[2])[2:]}"
    login, at, place = parts.netloc.rpartition("@")
    netloc = f"{login.partition(':')[0]}:***{at}{place}" if ":" in login else parts.netloc
    return _QUERY_SECRET.sub(_hide, url.replace(parts.netloc, netloc, 1))


_QUERY_SECRET: Final = re.compile(r"(?<=[?&;#])([^=&;#]*)=([^&;#]*)")


def _hide(field: re.Match[str]) -> str:
    name = unquote(field[1]).lower()
    return f"{field[1]}=***" if any(word in name for word in ("password", "passwd", "secret", "token")) else field[0]


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
    whole = not setting or (setting in Settings.model_fields and setting not in names())
    who = named.get(setting) or ("the settings" if whole else PREFIX + setting.upper().replace(".", "__"))
    return f"{who}: {sentence(error, _group_of(setting))}"


def _group_of(setting: str) -> type[BaseModel]:
    """The group that the setting is in."""
    first, _, name = setting.partition(".")
    group = Settings.model_fields[first].annotation if name and first in Settings.model_fields else None
    return group if isinstance(group, type) and issubclass(group, _Group) else Settings
