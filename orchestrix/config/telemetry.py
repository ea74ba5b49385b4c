"""Telemetry settings: where metrics are served, how traces are divided, and where people look at traces and logs."""

from __future__ import annotations

from pydantic import Field, field_validator

from orchestrix.config.groups import Seconds, SettingsGroup


class MetricsSettings(SettingsGroup):
    """Where a worker, or a node without HTTP API, serves its metrics and health; port 0: nowhere."""

    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535)


class TracesSettings(SettingsGroup):
    """How traces are divided; where they go is said by OpenTelemetry's own variables (`OTEL_…`).

    What begins more than `split_after` seconds after its cause is a trace of its own that links back.
    """

    split_after: Seconds = 300.0


class UiSettings(SettingsGroup):
    """Addresses of other tools, which answers then name.

    `trace_url` has `{trace_id}` in it; `logs_url` has `{correlation_id}`, `{trace_id}` or both.
    """

    trace_url: str | None = Field(None, max_length=2000)
    logs_url: str | None = Field(None, max_length=2000)

    @field_validator("trace_url")
    @classmethod
    def _names_a_trace(cls, value: str | None) -> str | None:
        return _template(value, ("{trace_id}",), "https://traces.example/trace/{trace_id}")

    @field_validator("logs_url")
    @classmethod
    def _names_logs(cls, value: str | None) -> str | None:
        return _template(value, ("{correlation_id}", "{trace_id}"), "https://logs.example/?query={correlation_id}")


def _template(value: str | None, fields: tuple[str, ...], example: str) -> str | None:
    if not value:
        return None
    left = value
    for field in fields:
        left = left.replace(field, "")
    if not value.startswith(("http://", "https://")) or left == value or "{" in left or "}" in left:
        raise ValueError(f"write an http(s) address with {' or '.join(fields)} in it, such as {example}")
    return value
