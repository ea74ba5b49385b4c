"""Waterfall: the spans of traces as lines of a terminal, each below the one that it follows from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from orchestrix.cli import output
from orchestrix.cli.display.ages import utc
from orchestrix.quantities import counted, duration
from orchestrix.telemetry import conventions as names

Body = Mapping[str, Any]

USUAL_COLUMNS: Final = 160
"""Where the output has no width, as in a file."""
BAR_SHARE: Final = 5
"""One part in so many of the width is for bars, within these limits."""
BAR_COLUMNS: Final = 10, 40
MAX_INDENT: Final = 16
SHORT_ID: Final = 8
_PREFIX: Final = "orchestrix-"
_WORDS: Final = {
    names.LINK_RETRY: "again after",
    names.LINK_CONTINUED: "continues",
    names.LINK_ACTION: "acts on",
    names.LINK_BATCH: "commits",
    names.LINK_REDRIVE: "sent again from",
    names.LINK_MESSAGE: "follows",
}


class Trace(NamedTuple):
    """A trace and its spans, as `GET /traces/{id}` shows them."""

    id: str
    spans: Sequence[Body]

    @property
    def begin(self) -> datetime:
        """When its first span began."""
        return min(_begin(one) for one in self.spans)


class Line(NamedTuple):
    """One span at its place: `depth` is how many others it follows from, one after the other."""

    span: Body
    depth: int


def waterfall(traces: Sequence[Trace], columns: int | None, limit: int | None) -> list[str]:
    """The lines of these traces, the first to begin first, none wider than `columns`; of at most `limit` spans.

    Each line has the time since the begin of its trace, how long the span took, a bar of both, the span's name below
    the one that it follows from, and what is to be known of it.
    """
    ordered = sorted((one for one in traces if one.spans), key=lambda one: one.begin)
    if not ordered:
        return []
    picture = _Picture(ordered, columns)
    lines, left = [picture.head()], limit
    for trace in ordered:
        if left == 0:
            break
        lines += ["", picture.title(trace), *picture.rows(trace, left)]
        left = None if left is None else max(0, left - len(trace.spans))
    hidden = 0 if limit is None else max(0, sum(len(one.spans) for one in ordered) - limit)
    if hidden:
        lines += ["", f"{counted(hidden, 'more span')}: --all shows them"]
    return [line if columns is None else output.cut(line, columns) for line in lines]


def tree(spans: Sequence[Body]) -> Iterator[Line]:
    """Each span below its parent, and those of one parent in the order of their begin. One whose parent is not here is
    a root; so is the first of those that foreign programs have made each other's parents.
    """
    ordered = sorted(spans, key=_begin)
    known = {one["spanId"] for one in ordered}
    children: dict[str | None, list[Body]] = defaultdict(list)
    for one in ordered:
        parent = one.get("parentSpanId")
        children[parent if parent in known else None].append(one)
    seen: set[str] = set()
    for root in [*children[None], *ordered]:
        waiting = [Line(root, 0)]
        while waiting:
            line = waiting.pop()
            if line.span["spanId"] not in seen:
                seen.add(line.span["spanId"])
                yield line
                waiting += [Line(one, line.depth + 1) for one in reversed(children[line.span["spanId"]])]


class _Picture:
    """What the lines have in common: the width of each part, and the names of all spans."""

    def __init__(self, traces: Sequence[Trace], columns: int | None) -> None:
        self._traces = traces
        self._names = {(trace.id, one["spanId"]): _name(one) for trace in traces for one in trace.spans}
        self._places = {_place(one) for trace in traces for one in trace.spans}
        least, most = BAR_COLUMNS
        self._bar = min(most, max(least, (columns or USUAL_COLUMNS) // BAR_SHARE))

    def head(self) -> str:
        spans = [one for trace in self._traces for one in trace.spans]
        begin, end = min(map(_begin, spans)), max(map(_end, spans))
        parts = [
            counted(len(self._traces), "trace"),
            counted(len(spans), "span"),
            f"{duration((end - begin).total_seconds())} from {utc(begin)}",
        ]
        if len(self._places) == 1:
            parts.append(f"all in {next(iter(self._places))}")
        return ", ".join(parts)

    def title(self, trace: Trace) -> str:
        """The id of a trace, when it began, and which trace it continues."""
        text = f"trace {output.visible(trace.id)}"
        after = (trace.begin - self._traces[0].begin).total_seconds()
        return text if trace is self._traces[0] else f"{text}, {duration(after)} after the first one's begin"

    def rows(self, trace: Trace, limit: int | None) -> Iterator[str]:
        begin = trace.begin
        whole = max((max(map(_end, trace.spans)) - begin).total_seconds(), 1e-6)
        for number, line in enumerate(tree(trace.spans)):
            if number == limit:
                return
            yield self._row(trace, line, begin, whole)

    def _row(self, trace: Trace, line: Line, begin: datetime, whole: float) -> str:
        span = line.span
        offset = (_begin(span) - begin).total_seconds()
        took = float(span.get("durationMs") or 0.0) / 1000
        times = f"{'+' + brief(offset):>9} {brief(took):>8}"
        named = " " * min(line.depth, MAX_INDENT) + _name(span)
        rest = "  ".join([named, *self._notes(trace, span)])
        failed = _failed(span)
        return f"{times}  {self._drawn(offset, took, whole)}  {output.mark(False) if failed else ' '} {rest}"

    def _drawn(self, offset: float, took: float, whole: float) -> str:
        first = min(self._bar - 1, int(self._bar * offset / whole))
        length = max(1, min(self._bar - first, round(self._bar * took / whole)))
        return (" " * first + output.block() * length).ljust(self._bar)

    def _notes(self, trace: Trace, span: Body) -> Iterator[str]:
        found = span.get("attributes") or {}
        if names.SAGA_STATE_TO in found:
            states = output.visible(f"{found.get(names.SAGA_STATE_FROM, '')} > {found[names.SAGA_STATE_TO]}")
            yield states.removeprefix(" > ")
        if failed := _failed(span):
            yield failed
        yield from _details(found)
        for link in span.get("links") or ():
            if (link.get("traceId"), link.get("spanId")) != (trace.id, span.get("parentSpanId")):
                yield self._link(trace, link)
        if len(self._places) > 1:
            yield f"[{_place(span)}]"

    def _link(self, trace: Trace, link: Body) -> str:
        """A link in words: to a span by its name, where that is shown, else to its trace."""
        words = _WORDS.get(str(link.get("kind")), "see")
        name = self._names.get((str(link.get("traceId")), str(link.get("spanId"))))
        where = (
            "" if link.get("traceId") == trace.id else f"trace {output.visible(str(link.get('traceId'))[:SHORT_ID])}"
        )
        named = "" if name is None else f"({name})" if where else name
        return " ".join(filter(None, [words, where, named])) or words


def _details(found: Body) -> Iterator[str]:
    """What a span's attributes say that its name does not."""
    if float(found.get(names.OUTBOX_WAIT_MS) or 0) >= 1:
        yield f"outbox {brief(found[names.OUTBOX_WAIT_MS] / 1000)}"
    if float(found.get(names.QUEUE_WAIT_MS) or 0) >= 1:
        yield f"queue {brief(found[names.QUEUE_WAIT_MS] / 1000)}"
    for name, word in ((names.SAGA_ATTEMPT, "attempt"), (names.JOB_ATTEMPT, "attempt")):
        if isinstance(number := found.get(name), int) and number > 1:
            yield f"{word} {number}"
    if found.get(names.REDELIVERED) is True:
        yield "redelivered"
    if found.get(names.SAGA_COMPENSATING) is True:
        yield "undo"
    if names.IGNORED in found:
        yield output.visible(f"ignored: {found[names.IGNORED]}")
    if names.TIMER_REASON in found:
        yield output.visible(f"timer: {found[names.TIMER_REASON]}")


def brief(seconds: float) -> str:
    """`1.2ms`, `35ms`, `1.25s`, `2min`: at most seven characters."""
    if seconds < 0.01:
        return f"{max(0.0, seconds) * 1000:.1f}ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 120:
        return f"{seconds:.2f}s"
    return f"{seconds / 60:.0f}min" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def _name(span: Body) -> str:
    """Its name; of a message only its key, for that of the exchange and the queue is the same on all lines."""
    found = span.get("attributes") or {}
    word = found.get(names.MESSAGING_OPERATION_NAME)
    key = found.get(names.MESSAGING_DESTINATION_TEMPLATE) or found.get(names.MESSAGING_ROUTING_KEY)
    return output.visible(f"{word} {key}" if word and key else str(span.get("name")))


def _failed(span: Body) -> str:
    """What went wrong, in a few words; empty where nothing did."""
    status = span.get("status") or {}
    if status.get("code") != "ERROR":
        return ""
    kind, text = (span.get("attributes") or {}).get(names.ERROR_TYPE), status.get("message")
    return output.visible(": ".join(str(one) for one in (kind, text) if one) or "failed")


def _place(span: Body) -> str:
    """Whose span it is: `worker w-1`."""
    service = str(span.get("service") or "").removeprefix(_PREFIX)
    return output.visible(" ".join(filter(None, [service, str(span.get("node") or "")])))


def _begin(span: Body) -> datetime:
    return datetime.fromisoformat(span["startTime"])


def _end(span: Body) -> datetime:
    return datetime.fromisoformat(span.get("endTime") or span["startTime"])
