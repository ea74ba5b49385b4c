"""Published spans: ends the spans of messages by what became of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from orchestrix.broker.port import Outcome, Published
from orchestrix.telemetry.tracing import Span


async def with_spans(publishing: Awaitable[list[Published]], spans: Sequence[Span]) -> list[Published]:
    """The results of `publishing`, by which the spans of its messages end; without results nothing is known of them."""
    results: list[Published] | None = None
    try:
        results = await publishing
    finally:
        _end(spans, results or [Published(Outcome.UNKNOWN)] * len(spans))
    return results


def _end(spans: Sequence[Span], results: Sequence[Published]) -> None:
    """Ends each span; one whose message was not confirmed has the outcome as its error."""
    for span, result in zip(spans, results, strict=True):
        if span.recording:
            if result.outcome is not Outcome.CONFIRMED:
                span.fail(result.outcome.value, result.detail)
            span.end()
