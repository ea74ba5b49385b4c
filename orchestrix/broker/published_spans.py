"""Published spans: messages carry the context of their spans, which end by what became of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace

from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.telemetry.tracing import Span


def carrying(outgoing: Outgoing, span: Span) -> Outgoing:
    """The message, with the context of the span that publishes it."""
    if not span.recording or span.context is None:
        return outgoing
    return replace(outgoing, headers={**outgoing.headers, **span.context.headers})


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
