"""Which headers are understood, and which are passed over?"""

from __future__ import annotations

import pytest
from starlette.requests import Request

from orchestrix.api import headers
from orchestrix.api.problems import Problem
from orchestrix.telemetry.trace_context import TraceContext

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def request(*pairs: tuple[str, str]) -> Request:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
    return Request({"type": "http", "headers": raw})


@pytest.mark.parametrize("value", ["a", "x" * 128, "0199c2a4-5b1e-7f3a", '!"#~'])
def test_a_correlation_id(value: str) -> None:
    assert headers.is_correlation_id(value)


@pytest.mark.parametrize("value", ["", "x" * 129, "a b", "tab\t", "ü", "\x7f", "line\n"])
def test_no_correlation_id(value: str) -> None:
    assert not headers.is_correlation_id(value)


def client_context(*pairs: tuple[str, str]) -> TraceContext | None:
    return headers.client_context(request(*pairs).headers)


@pytest.mark.parametrize("value", [PARENT, f"00-{TRACE}-{SPAN}-03", f" {PARENT} "])
def test_a_traceparent_is_kept(value: str) -> None:
    assert client_context(("traceparent", value)) == (value.strip(), None)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert client_context(("traceparent", f"cc-{TRACE}-{SPAN}-01-what-else")) == (PARENT, None)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "rubbish",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-0g",
        "00-" + "é" * 52,
    ],
)
def test_a_bad_traceparent_is_passed_over_with_its_tracestate(value: str) -> None:
    assert client_context(("traceparent", value), ("tracestate", "a=1")) is None


def test_two_traceparents_are_passed_over() -> None:
    assert client_context(("traceparent", PARENT), ("traceparent", PARENT)) is None


def test_tracestates_are_joined() -> None:
    asked = ("traceparent", PARENT), ("tracestate", "a=1, b@c=2"), ("tracestate", ",d=x y")
    assert client_context(*asked) == (PARENT, "a=1,b@c=2,d=x y")


@pytest.mark.parametrize(
    "value",
    ["", "=1", "A=1", "a", "a=1,a=2", "a=" + "x" * 600, ",".join(f"k{n}=1" for n in range(33)), "a=b=c", "a=é"],
)
def test_a_bad_tracestate_is_passed_over(value: str) -> None:
    assert client_context(("traceparent", PARENT), ("tracestate", value)) == (PARENT, None)


@pytest.mark.parametrize("value", ['"3"', 'W/"3"', '"1", "3"', '"1",W/"3"', "*"])
def test_a_tag_matches(value: str) -> None:
    assert headers.matches(request(("If-None-Match", value)), '"3"')


@pytest.mark.parametrize("value", ['"4"', "3", "", '"33"', '"1", "2"', '"*"'])
def test_a_tag_does_not_match(value: str) -> None:
    assert not headers.matches(request(("If-None-Match", value)), '"3"')


def test_last_event_id() -> None:
    assert headers.last_event_id(request(("Last-Event-ID", "12"))) == 12
    assert headers.last_event_id(request()) is None


@pytest.mark.parametrize("value", ["-1", "x", "1.0", "9" * 17, "9007199254740992", "²"])
def test_no_last_event_id(value: str) -> None:
    with pytest.raises(Problem) as refused:
        headers.last_event_id(request(("Last-Event-ID", value)))
    assert refused.value.status == 400
