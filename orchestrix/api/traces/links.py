"""Links: where other tools show the trace and the logs of what is answered about."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pydantic import Field

from orchestrix.api.answers import Answer
from orchestrix.telemetry.trace_context import trace_context

TRACE_ID: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
LINKS: Final = "links"
LINKS_ABOUT: Final = (
    "Where to look further; absent where neither `ORCHESTRIX_UI__TRACE_URL` nor `ORCHESTRIX_UI__LOGS_URL` leads there."
)


def is_absent(value: object) -> bool:
    """Whether a field is left out."""
    return value is None


class Links(Answer):
    """Pages of other tools."""

    trace: str | None = Field(None, exclude_if=is_absent, description="The trace, by `ORCHESTRIX_UI__TRACE_URL`.")
    logs: str | None = Field(None, exclude_if=is_absent, description="The logs, by `ORCHESTRIX_UI__LOGS_URL`.")


class LinkTemplates(NamedTuple):
    """Addresses with `{trace_id}` and `{correlation_id}` in them; None for a tool that there is not."""

    trace_url: str | None = None
    logs_url: str | None = None

    def of(self, correlation_id: str, trace_id: str | None) -> Links | None:
        """What leads to that trace, and to those logs; None without any."""
        if self.trace_url is None and self.logs_url is None:
            return None
        ids = {"{trace_id}": trace_id, "{correlation_id}": correlation_id}
        trace, logs = _filled(self.trace_url, ids), _filled(self.logs_url, ids)
        return None if trace is None and logs is None else Links(trace=trace, logs=logs)


NO_LINKS: Final = LinkTemplates()


def of_row(templates: LinkTemplates, row: Any) -> Links | None:
    """Those of what has a `correlation_id` and a `trace_id`."""
    return templates.of(row.correlation_id, row.trace_id)


def trace_id_of(traceparent: object) -> str | None:
    """The trace in a `traceparent`, if that is one."""
    found = trace_context(traceparent)
    return None if found is None else found.trace_id


def _filled(template: str | None, ids: dict[str, str | None]) -> str | None:
    """The address; None without one, or where an id in it is not known."""
    for name, value in ids.items():
        if template is not None and name in template:
            template = None if value is None else template.replace(name, quote(value, safe=""))
    return template
