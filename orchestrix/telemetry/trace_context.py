"""Trace context: what a message, a row or a request carries of its trace, by W3C Trace Context (level 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACE_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
MAX_TRACESTATE_CHARS: Final = 512
MAX_TRACESTATE_MEMBERS: Final = 32
SAMPLED: Final = 1
"""The bit of the flags that says that the spans of a trace are kept."""


class TraceContext(NamedTuple):
    """The span that something follows from: its trace, its id and its flags. Always a valid `traceparent`.

    It is passed on byte for byte by whoever makes no span of his own.
    """

    traceparent: str
    tracestate: str | None = None

    @property
    def trace_id(self) -> str:
        """32 lower-case hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 lower-case hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def flags(self) -> int:
        """The flags, a bit field."""
        return int(self.traceparent[53:55], 16)

    @property
    def sampled(self) -> bool:
        """Whether the spans of this trace are kept."""
        return bool(self.flags & SAMPLED)

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields of a log line that belongs to it: by "Trace Context in non-OTLP Log Formats" of OpenTelemetry."""
        return {"trace_id": self.trace_id, "span_id": self.span_id, "trace_flags": self.traceparent[53:55]}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a message that follows from it."""
        if self.tracestate is None:
            return {"traceparent": self.traceparent}
        return {"traceparent": self.traceparent, "tracestate": self.tracestate}


def trace_context(traceparent: object, tracestate: object = None) -> TraceContext | None:
    """The context in two headers; None where the first is no valid `traceparent`. An invalid second is left out."""
    parent = _parent(traceparent.strip()) if isinstance(traceparent, str) else None
    if parent is None:
        return None
    return TraceContext(parent, _state(tracestate) if isinstance(tracestate, str) else None)


def context_in(headers: Mapping[str, object]) -> TraceContext | None:
    """The context in the headers of a message; None without a valid one."""
    found = headers.get("traceparent")
    return None if found is None else trace_context(header_text(found), header_text(headers.get("tracestate")))


def header_text(value: object) -> str | None:
    """A header as text: some clients of AMQP send bytes. None for what is neither."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def published_context(made_by: TraceContext, message_id: str) -> TraceContext:
    """The context of the span that first publishes a message of that id, which `made_by` has made.

    Its span id is half of the message's UUID: so it is known before the message is published, to whoever will have to
    refer to it. For an id that is no UUID it is `made_by`.
    """
    span_id = span_id_for(message_id)
    if span_id is None:
        return made_by
    return made_by._replace(traceparent=f"{made_by.traceparent[:36]}{span_id:016x}{made_by.traceparent[52:]}")


def span_id_for(message_id: str) -> int | None:
    """The id of the span that first publishes the message; None for an id that is no UUID."""
    digits = message_id.replace("-", "")
    try:
        return int(digits[16:], 16) or None if len(digits) == 32 else None
    except ValueError:
        return None


def _parent(value: str) -> str | None:
    match = _TRACEPARENT.fullmatch(value)
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return f"00-{trace}-{span}-{flags}"  # what a later version adds is not ours to pass on


def _state(value: str) -> str | None:
    members = [member for part in value.split(",") if (member := part.strip(" \t"))]
    keys = {member.split("=")[0] for member in members}
    right = len(keys) == len(members) <= MAX_TRACESTATE_MEMBERS and all(map(_TRACE_MEMBER.fullmatch, members))
    text = ",".join(members)
    return text if text and right and len(text) <= MAX_TRACESTATE_CHARS else None
