"""Is a trace read at a glance: what followed from what, when, how long, where, and what went wrong?"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrix.cli import output
from orchestrix.cli.display.waterfall import Trace, brief, tree, waterfall

FIRST, LATER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b74bf92f3577b34da6"
DEV = ("orchestrix-dev", "node-1")


def span(
    number: int,
    parent: int | None,
    name: str,
    begin_ms: int,
    took_ms: int,
    *,
    place: tuple[str, str] = DEV,
    error: str | None = None,
    links: list[tuple[str, int, str]] | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    """A span as `GET /traces/{id}` shows it, so many milliseconds after noon. `_` stands for a dot in attributes."""
    found = {key.replace("__", "."): value for key, value in attributes.items()}
    if error is not None:
        found["error.type"] = error
    return {
        "spanId": f"{number:016x}",
        "parentSpanId": None if parent is None else f"{parent:016x}",
        "name": name,
        "kind": "INTERNAL",
        "service": place[0],
        "node": place[1],
        "startTime": _at(begin_ms),
        "endTime": _at(begin_ms + took_ms),
        "durationMs": float(took_ms),
        "status": {"code": "UNSET" if error is None else "ERROR", "message": None},
        "attributes": found,
        "links": [{"traceId": trace, "spanId": f"{to:016x}", "kind": kind} for trace, to, kind in links or []],
        "events": [],
    }


def _at(ms: int) -> str:
    return f"2026-01-31T12:{ms // 60_000:02}:{ms // 1000 % 60:02}.{ms % 1000:03}000Z"


WORKER = ("orchestrix-worker", "w-1")
API = ("orchestrix-api", "node-1")
MESSAGE: dict[str, Any] = {
    "messaging__operation__name": "publish",
    "messaging__rabbitmq__destination__routing_key": "cmd.pay",
}
SAGA: dict[str, Any] = {"saga__name": "order", "saga__id": 1}


def saga() -> list[Trace]:
    """An order whose first try fails, and which is continued by a person six minutes later."""
    process: dict[str, Any] = {**MESSAGE, "messaging__operation__name": "process"}
    return [
        Trace(
            LATER,
            [span(20, None, "retry", 400_000, 100, place=API, links=[(FIRST, 5, "action"), (FIRST, 99, "continued")])],
        ),
        Trace(
            FIRST,
            [
                span(2, 1, "start saga", 5, 10, place=API, saga__state__to="UNPAID", **SAGA),
                span(1, None, "POST /orders", 0, 20, place=API),
                span(3, 2, "publish x", 15, 5, place=API, orchestrix__outbox__wait_ms=12.5, **MESSAGE),
                span(
                    4, 3, "process x", 1020, 400, place=WORKER, error="NoMoney", links=[(FIRST, 3, "message")],
                    orchestrix__queue__wait_ms=1000.0, **process,
                ),
                span(
                    5, 4, "process y", 1430, 100, place=API, saga__state__from="UNPAID", saga__state__to="HELD",
                    saga__attempt=2, orchestrix__redelivered=True, links=[(FIRST, 3, "retry")], **SAGA,
                ),
                span(6, 77, "process z", 1800, 200, place=WORKER, orchestrix__ignored="older"),
            ],
        ),
    ]  # fmt: skip


GOLDEN = """\
2 traces, 7 spans, 6 min 40 s from 2026-01-31T12:00:00Z

trace 4bf92f3577b34da6a3ce929d0e0e4736
   +0.0ms     20ms  =                                           POST /orders  [api node-1]
   +5.0ms     10ms  =                                            start saga  UNPAID  [api node-1]
    +15ms    5.0ms  =                                             publish cmd.pay  outbox 12ms  [api node-1]
   +1.02s    400ms                      ========              x    process cmd.pay  NoMoney  queue 1.00s  [worker w-1]
   +1.43s    100ms                              ==                  process y  UNPAID > HELD  attempt 2  redelivered \
 again after publish cmd.pay  [api node-1]
   +1.80s    200ms                                      ====    process z  ignored: older  [worker w-1]

trace 00f067aa0ba902b74bf92f3577b34da6, 6 min 40 s after the first one's begin
   +0.0ms    100ms  ========================================    retry  acts on trace 4bf92f35 (process y) \
 continues trace 4bf92f35  [api node-1]"""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that has ASCII alone."""
    monkeypatch.setattr(output, "_unicode", lambda: False)


def test_a_saga_in_two_traces() -> None:
    lines = waterfall(saga(), 200, None)
    assert "\n".join(lines) == GOLDEN, "\n".join(lines)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    lines = waterfall(saga(), columns, None)
    assert max(map(output.width, lines)) <= columns
    assert len(lines) == len(GOLDEN.splitlines())


def test_spans_of_one_process_name_it_once() -> None:
    trace = Trace(FIRST, [span(1, None, "a", 0, 5), span(2, 1, "b", 1, 2)])
    lines = waterfall([trace], 100, None)
    assert lines[0].endswith(", all in dev node-1")
    assert sum("node-1" in line for line in lines) == 1


def test_a_long_trace_is_cut_and_says_so() -> None:
    trace = Trace(FIRST, [span(number, number - 1, f"span {number}", number, 1) for number in range(1, 301)])
    lines = waterfall([trace, Trace(LATER, [span(1, None, "later", 500_000, 1)])], 100, 200)
    assert sum("span " in line for line in lines[3:-1]) == 200
    assert lines[-1] == "101 more spans: --all shows them"
    everything = waterfall([trace], 100, None)
    assert sum("span " in line for line in everything[3:]) == 300
    assert not any("--all" in line for line in everything)


def test_each_span_stands_below_its_parent_whatever_the_order_and_the_ids() -> None:
    loop = [span(1, 2, "a", 0, 1), span(2, 1, "b", 0, 1)]
    mixed = [
        span(3, 9, "orphan", 5, 1),
        span(5, 4, "second", 3, 1),
        span(6, 4, "first", 2, 1),
        span(4, None, "root", 0, 1),
    ]
    assert [(one.span["name"], one.depth) for one in tree(mixed)] == [
        ("root", 0), ("first", 1), ("second", 1), ("orphan", 0),
    ]  # fmt: skip
    assert sorted(one.span["name"] for one in tree([*loop, span(7, 7, "own parent", 0, 1)])) == ["a", "b", "own parent"]


def test_what_others_wrote_does_not_steer_the_terminal() -> None:
    trace = Trace(FIRST, [span(1, None, "\x1b[2Ja\nb", 0, 1, error="\x07", orchestrix__ignored="\r")])
    text = "".join(waterfall([trace], 100, None))
    assert not {"\x1b", "\x07", "\r", "\n"} & set(text)


def test_nothing_is_no_line() -> None:
    assert waterfall([], 80, None) == []
    assert waterfall([Trace(FIRST, [])], 80, None) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0ms"), (0.0012, "1.2ms"), (0.035, "35ms"), (1.25, "1.25s"), (125, "2min"), (90_000, "25h")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert brief(seconds) == text
