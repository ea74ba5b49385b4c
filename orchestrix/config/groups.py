"""Settings groups: what each setting takes, and what does not fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from orchestrix.config.tokens import SECRET, tokens_in, tokens_of
from orchestrix.config.urls import base_url


class SettingsGroup(BaseModel):
    """Settings that belong together. One whose name in files and variables is not the attribute's has it as alias."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def attributes(cls) -> dict[str, str]:
        """The attribute of each setting, by the name under which it is set."""
        return {field.alias or name: name for name, field in cls.model_fields.items()}

    def value_of(self, name: str) -> Any:
        """The value of the setting with that dotted name. Raises `KeyError` where there is none."""
        own, _, inner = name.partition(".")
        value = getattr(self, self.attributes()[own])
        return value.value_of(inner) if inner else value


Seconds = Annotated[float, Field(ge=0.01, le=2_592_000)]
"""A time of up to thirty days: anything shorter or longer is a mistake, and would stop the process or never end."""


class HttpSettings(SettingsGroup):
    """Where the API listens, and its limits; times in seconds.

    `allowed_hosts` are names, beside those of loopback, by which it may be called while it needs no token; `public_url`
    are the URLs at which executors reach the nodes, for their reports.
    `keep_alive` is longer than clients and load balancers keep a connection (60 s at most by default): a server that
    closes first loses the request that its client is just sending. Without `max_connections` it is what the limit of
    open files allows; `max_streams` are the long-polls and event streams of one client. `cors_origins` are other web
    sites whose pages may call it; `gzip` compresses answers of more than 1 kB, but no streams, for clients that ask.
    """

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    public_url: tuple[str, ...] = ()
    head_timeout: float = Field(10.0, ge=1, le=3600)
    body_timeout: float = Field(30.0, ge=1, le=3600)
    keep_alive: float = Field(75.0, ge=1, le=3600)
    max_connections: int | None = Field(None, ge=8, le=1_000_000)
    max_streams: int = Field(1000, ge=1, le=1_000_000)
    cors_origins: tuple[str, ...] = ()
    gzip: bool = False

    @field_validator("allowed_hosts", "public_url", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return listed(value)

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not _HOST.fullmatch(one):
                raise ValueError("write host names separated by commas, e.g. orchestrix.example,10.0.0.7:8080")
        return value

    @field_validator("public_url")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(base_url(one) for one in value))

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            scheme, _, host = one.partition("://")
            if scheme not in ("http", "https") or not _HOST.fullmatch(host):
                raise ValueError(
                    "write origins with commas in between, such as https://ui.example,http://localhost:3000"
                )
        return tuple(one.lower() for one in value)


_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}))(?::[0-9]{1,5})?")


def listed(value: object) -> object:
    """The parts of a text with commas; anything else as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class ApiSettings(SettingsGroup):
    """Who may use the API. `tokens` are the secrets that it takes, by the names of those who have them.

    Without tokens it is open to whoever reaches it; `auth` is `none` where that is intended. `token` is the secret that
    the client commands send.
    """

    tokens: Mapping[str, SecretStr] = {}
    auth: Literal["token", "none"] = "token"
    token: SecretStr | None = None

    @field_validator("tokens", mode="before")
    @classmethod
    def _read_tokens(cls, value: object) -> object:
        return tokens_of(value) if isinstance(value, str) else tokens_in(value)

    @field_validator("token")
    @classmethod
    def _sendable(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not SECRET.fullmatch(value.get_secret_value()):
            raise ValueError("a secret must be visible ASCII characters without a comma")
        return value or None


class LogSettings(SettingsGroup):
    """What is logged. `auto` is pretty on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "pretty"] = "auto"

    @field_validator("level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


class WorkerSettings(SettingsGroup):
    """How much a worker does at once, and how long it may take to stop, in seconds.

    It runs `concurrency` commands and as many jobs, in separate slots. A command that came
    `max_deliveries` times before is not run: it seems to crash every worker that tries.
    """

    concurrency: int = Field(10, ge=1, le=1000)
    prefetch: int | None = Field(None, ge=1, le=5000)
    max_deliveries: int = Field(19, ge=1, le=1_000_000)
    stop_timeout: Seconds = 30.0

    @property
    def window(self) -> int:
        """The prefetch: how many messages a queue delivers ahead of the work."""
        return self.prefetch or max(50, 2 * self.concurrency)


class OrchestratorSettings(SettingsGroup):
    """The hot path: sizes in rows, times in seconds.

    `timeouts_per_second` is how many steps may fail by deadline in a second, over all nodes;
    `dead_letters_per_minute` how many dead letters a node stores in the database: the others stay in their queues.
    """

    batch: int = Field(500, ge=1, le=5000)
    claim: float = Field(15.0, ge=1, le=3600)
    timeouts_per_second: float = Field(50.0, ge=0.01, le=1_000_000)
    dead_letters_per_minute: int = Field(1000, ge=1, le=1_000_000)


class DatabaseSettings(SettingsGroup):
    """The pool of one process."""

    pool_size: int = Field(10, ge=2, le=200)


class ClusterSettings(SettingsGroup):
    """How nodes monitor each other and hand off, in seconds (`handoff_retries`: how often at most).

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
        _under_half("cluster.renew", self.renew, "cluster.lease", self.lease, "one missed renewal would end a term")
        _under_half(
            "cluster.heartbeat", self.heartbeat, "cluster.dead", self.dead, "one missed heartbeat would be fatal"
        )
        asking = self.handoff_ack * self.handoff_retries
        if self.handoff_hard <= asking:
            raise ValueError(
                f"cluster.handoff_hard ({self.handoff_hard:g}) is not above cluster.handoff_ack x "
                f"cluster.handoff_retries ({asking:g}), so a node would stop while it still waits for answers: "
                "raise the first or lower the others"
            )
        if self.presence >= self.dead:
            raise ValueError(
                f"cluster.presence ({self.presence:g}) is not below cluster.dead ({self.dead:g}), so it would "
                "never detect anything sooner: lower the first or raise the second"
            )
        return self


class JobsSettings(SettingsGroup):
    """How many jobs may run at once in the cluster, and timeouts and heartbeats of jobs, in seconds.

    Of the log of one job `log_lines` lines are kept, and `log_bytes` bytes of their messages.
    """

    max_live: int = Field(1000, ge=1, le=1_000_000)
    beat: Seconds = 10.0
    silent: Seconds = 30.0
    log_lines: int = Field(100_000, ge=1, le=2**53)
    log_bytes: int = Field(64 * 1024 * 1024, ge=1, le=2**53)

    @model_validator(mode="after")
    def _consistent(self) -> JobsSettings:
        _under_half("jobs.beat", self.beat, "jobs.silent", self.silent, "one missed heartbeat would lose a job")
        return self


def _under_half(name: str, value: float, of: str, limit: float, or_else: str) -> None:
    if value >= limit / 2:
        raise ValueError(
            f"{name} ({value:g}) must be below half of {of} ({limit:g}), or {or_else}: "
            "lower the first or raise the second"
        )
