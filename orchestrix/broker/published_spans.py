"""Published spans: ends the spans of messages by what became of them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrix.broker.port import Outcome, Published
from orchestrix.telemetry.tracing import Span


def end_publish_spans(spans: Sequence[Span], results: Sequence[Published]) -> None:
    """Ends each span; one whose message was not confirmed has the outcome as its error."""
    for span, result in zip(spans, results, strict=True):
        if span.recording:
            if result.outcome is not Outcome.CONFIRMED:
                span.fail(result.outcome.value, result.detail)
            span.end()
