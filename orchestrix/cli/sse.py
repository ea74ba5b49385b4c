"""Server-sent events: reads the events of a stream (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

MAX_LINE_BYTES = 1 << 20
"""Bytes; a change is far below."""


class LineReader(Protocol):
    """What can be read line by line; an empty line end means that the stream is over."""

    def readline(self, limit: int = ..., /) -> bytes:
        """The next line with its end, or what is left of it beyond `limit` bytes."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event."""

    id: str
    name: str
    data: str


def events(stream: LineReader) -> Iterator[ServerSentEvent]:
    """The events, as they come, until the stream ends; one that was not finished by then does not count.

    Raises `OSError` for a line of more than a mebibyte, and what reading raises.
    """
    last_id = ""
    fields: dict[str, list[str]] = {}
    while line := stream.readline(MAX_LINE_BYTES):
        if not line.endswith(b"\n"):
            if len(line) >= MAX_LINE_BYTES:
                raise OSError("a line without end")
            return
        text = line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
            continue
        last_id = fields.get("id", [last_id])[-1]
        if "data" in fields:
            yield ServerSentEvent(last_id, fields.get("event", ["message"])[-1], "\n".join(fields["data"]))
        fields = {}
