"""Trace reader: where the API finds the spans of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class TraceReader(Protocol):
    """The traces that this machine keeps."""

    def spans(self, trace_id: str) -> Sequence[dict[str, Any]] | None:
        """The spans of that trace, as `SpanBody` shows them; None or nothing for one that is not kept.

        It is called in a thread, for it may wait for a disk.
        """
