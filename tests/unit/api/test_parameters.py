"""Which query strings are understood?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.api.parameters import Parameter, Query
from orchestrix.api.problems import Problem

KNOWN = [Parameter("state", "", many=True), *(Parameter(name, "") for name in ("limit", "wait", "at", "q", "since"))]


def query(raw: str) -> Query:
    return Query(raw.encode("latin-1"), KNOWN)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(Problem) as problem:
        call()
    assert problem.value.status == 400
    return str(problem.value.members["parameter"])


def test_absent_is_none() -> None:
    nothing = query("")
    assert (nothing.text("q"), nothing.moment("at"), nothing.duration("wait", 60), nothing.number("since")) == (
        None,
        None,
        None,
        None,
    )
    assert (nothing.limit(50), nothing.choices("state", {"A"})) == (50, ())


def test_empty_is_refused_but_for_what_may_be_blank() -> None:
    reads: dict[str, Callable[[Query], object]] = {
        "q": lambda asked: asked.text("q"),
        "at": lambda asked: asked.moment("at"),
        "wait": lambda asked: asked.duration("wait", 60),
        "since": lambda asked: asked.number("since"),
        "limit": lambda asked: asked.limit(50),
        "state": lambda asked: asked.choices("state", {"A"}),
    }
    for name, read in reads.items():
        assert refused(partial(read, query(f"{name}="))) == name
    assert query("q=").text("q", blank=True) is None


def test_text_is_brought_to_the_form_of_stored_names() -> None:
    assert query("q=Cafe%CC%81+x").text("q") == "Café x"


def test_a_repeatable_parameter_keeps_each_value_once() -> None:
    assert query("state=B&state=A&state=B").choices("state", {"A", "B"}) == ("B", "A")


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("x=1", "x"),
        ("limit=1&limit=2", "limit"),
        ("q=%FF", "query"),
        ("q=%00", "q"),
        ("q=a%0A", "q"),
        ("Limit=1", "Limit"),
    ],
)
def test_the_query_as_a_whole_is_refused(raw: str, name: str) -> None:
    assert refused(lambda: query(raw)) == name


def test_a_flood_of_parameters_is_refused() -> None:
    assert refused(lambda: query("&".join(["state=A"] * 101))) == "query"


@pytest.mark.parametrize("value", ["0", "201", "-1", "+1", "1.0", "1e2", "x", "9" * 30, "٣", "1_0", " 1"])
def test_a_limit_out_of_range_is_refused(value: str) -> None:
    assert refused(lambda: query(f"limit={quote(value)}").limit(50)) == "limit"


@pytest.mark.parametrize(
    ("value", "seconds"), [("20s", 20), ("500ms", 0.5), ("20", 20), ("0", 0), ("60s", 60), ("60000ms", 60)]
)
def test_a_duration(value: str, seconds: float) -> None:
    assert query(f"wait={value}").duration("wait", 60) == seconds


@pytest.mark.parametrize("value", ["61s", "60001ms", "1m", "-1", "1.5s", "s", "20 s", "1e1", "nan", "9" * 40])
def test_no_duration(value: str) -> None:
    assert refused(lambda: query(f"wait={quote(value)}").duration("wait", 60)) == "wait"


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31t12:00:00.123456z", datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)),
        ("2026-01-31T12:00:00+01:30", datetime(2026, 1, 31, 10, 30, tzinfo=UTC)),
        ("2026-01-31T12:00:00-00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500000, tzinfo=UTC)),
    ],
)
def test_a_moment(value: str, moment: datetime) -> None:
    assert query(f"at={quote(value)}").moment("at") == moment


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-31T12:00:00",
        "2026-01-31",
        "2026-02-30T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:00:60Z",
        "20260131T120000Z",
        "2026-W05-6T12:00:00Z",
        "now",
        "1769860800",
        "0001-01-01T00:00:00+23:00",
        "２026-01-31T12:00:00Z",
        "2026-01-31T12:00:00 01:00",
    ],
)
def test_no_moment(value: str) -> None:
    assert refused(lambda: query(f"at={quote(value)}").moment("at")) == "at"


@given(st.text(max_size=60))
def test_no_value_makes_the_server_stumble(text: str) -> None:
    raw = quote(text, errors="replace")
    reads: list[Callable[[Query], object]] = [
        lambda asked: asked.moment("q"),
        lambda asked: asked.duration("q", 60),
        lambda asked: asked.number("q"),
        lambda asked: asked.choices("q", {"A"}),
    ]
    for read in reads:
        with suppress(Problem):
            read(query(f"q={raw}"))
