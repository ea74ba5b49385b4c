"""Registry settings: the times of the executor registry, which executors may be called, and their secrets."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, SecretStr, field_validator, model_validator

from orchestrix.config.groups import Seconds, SettingsGroup, listed
from orchestrix.config.tokens import SECRET, tokens_of


class RegistrySettings(SettingsGroup):
    """How executors are monitored and called, in seconds.

    An executor sends a heartbeat every `beat`, gets no job without one for `dead`, and is removed every `sweep`
    (`cleanup` here). A call to it may take `call_timeout`; each `probe` it is asked about an attempt. None of these is
    longer than `dead`, which shortens their defaults. `allow` are the networks and names that may be called; without it
    nothing is. `token` is one secret for all apps, without a colon, or `app:secret,…`.
    """

    beat: Seconds = 30.0
    dead: Seconds = 90.0
    cleanup: Seconds = Field(30.0, alias="sweep")
    allow: tuple[str, ...] | None = None
    token: SecretStr | None = None
    call_timeout: Seconds = 10.0
    probe: Seconds = 30.0

    @field_validator("allow", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        parts = listed(value)
        return None if parts == () else parts

    @field_validator("token")
    @classmethod
    def _read_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value().strip():
            return None
        _secrets(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RegistrySettings:
        for name in {"cleanup", "probe", "call_timeout"} - self.model_fields_set:  # `dead` alone may be made shorter
            object.__setattr__(self, name, min(getattr(self, name), self.dead))
        if self.beat > self.dead / 2:
            raise ValueError(
                f"registry.beat ({self.beat:g}) must be at most half of registry.dead ({self.dead:g}), or one missed "
                "heartbeat would remove an executor: lower the first or raise the second"
            )
        for name, value, or_else in (
            ("sweep", self.cleanup, "dead executors would stay registered for too long"),
            ("probe", self.probe, "an attempt would be lost before its executor is asked about it"),
            ("call_timeout", self.call_timeout, "an attempt would be lost while its executor is being called"),
        ):
            if value > self.dead:
                raise ValueError(
                    f"registry.{name} ({value:g}) must be at most registry.dead ({self.dead:g}), or {or_else}: "
                    "lower the first or raise the second"
                )
        return self

    def secrets(self) -> Mapping[str, SecretStr]:
        """The secret of each app's executors; that of all apps has the empty name."""
        return _secrets(self.token) if self.token is not None else {}


def _secrets(token: SecretStr) -> Mapping[str, SecretStr]:
    """Each app's secret; of all apps, by the empty name. Raises `ValueError`."""
    text = token.get_secret_value().strip()
    if ":" in text or "," in text:
        return {app: SecretStr(secret) for app, secret in tokens_of(text).items()}
    if not SECRET.fullmatch(text):
        raise ValueError(
            "token 1 must be name:secret, or one secret for all apps: visible ASCII characters without spaces, commas "
            "and colons"
        )
    return {"": SecretStr(tokens_of(f"all:{text}")["all"])}
