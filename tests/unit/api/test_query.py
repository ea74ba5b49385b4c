"""Which query strings are understood?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar, Literal
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from orchestrix.api.problems import Problem
from orchestrix.api.query import Duration, Flag, Instant, Paging, Query, Text, Whole, read_query


class Everything(Paging):
    """One of each kind."""

    blank: ClassVar[frozenset[str]] = frozenset({"q"})

    state: tuple[Literal["A", "B"], ...] = Field((), description="Some.")
    wait: Duration | None = Field(None, description="So long.")
    at: Instant | None = Field(None, description="Then.")
    q: Text | None = Field(None, description="Like this.")
    since_version: Whole | None = Field(None, description="From there.")
    stuck: Flag | None = Field(None, description="Or not.")


def query(raw: str) -> Everything:
    return read_query(Everything, raw.encode("latin-1"))


def refused(raw: str) -> str:
    with pytest.raises(Problem) as problem:
        query(raw)
    assert problem.value.status == 400
    assert problem.value.detail.endswith(".")
    return str(problem.value.members["parameter"])


def test_absent_is_none() -> None:
    nothing = query("")
    assert (nothing.q, nothing.at, nothing.wait, nothing.since_version, nothing.stuck) == (None,) * 5
    assert (nothing.limit, nothing.state) == (50, ())


@pytest.mark.parametrize("name", ["at", "wait", "sinceVersion", "limit", "state", "stuck", "cursor"])
def test_empty_is_refused(name: str) -> None:
    assert refused(f"{name}=") == name


def test_what_may_be_blank_is_absent_then() -> None:
    assert query("q=").q is None


def test_text_is_brought_to_the_form_of_stored_names() -> None:
    assert query("q=Cafe%CC%81+x").q == "Café x"


def test_a_repeatable_parameter_has_all_its_values() -> None:
    assert query("state=B&state=A&state=B").state == ("B", "A", "B")
    assert refused("state=B&state=C") == "state"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("x=1", "x"),
        ("limit=1&limit=2", "limit"),
        ("q=%FF", "query"),
        ("q=%00", "q"),
        ("q=a%0A", "q"),
        ("Limit=1", "Limit"),
        ("since_version=1", "since_version"),
    ],
)
def test_the_query_as_a_whole_is_refused(raw: str, name: str) -> None:
    assert refused(raw) == name


def test_who_takes_no_parameters_refuses_all() -> None:
    with pytest.raises(Problem, match="x: is not known here; allowed are: none"):
        read_query(Query, b"x=1")


def test_a_flood_of_parameters_is_refused() -> None:
    assert refused("&".join(["state=A"] * 101)) == "query"


@pytest.mark.parametrize("value", ["0", "201", "-1", "+1", "1.0", "1e2", "x", "9" * 30, "٣", "1_0", " 1"])
def test_a_limit_out_of_range_is_refused(value: str) -> None:
    assert refused(f"limit={quote(value)}") == "limit"


def test_a_wrong_number_is_told_its_range() -> None:
    with pytest.raises(Problem, match=r"limit: must be a whole number from 1 to 200\.$"):
        query("limit=201")


@pytest.mark.parametrize("value", ["True", "1", "yes", "on", "t"])
def test_a_flag_is_true_or_false(value: str) -> None:
    assert (query("stuck=true").stuck, query("stuck=false").stuck) == (True, False)
    assert refused(f"stuck={value}") == "stuck"


@pytest.mark.parametrize(
    ("value", "seconds"), [("20s", 20), ("500ms", 0.5), ("20", 20), ("0", 0), ("60s", 60), ("60000ms", 60)]
)
def test_a_duration(value: str, seconds: float) -> None:
    assert query(f"wait={value}").wait == seconds


@pytest.mark.parametrize("value", ["61s", "60001ms", "1m", "-1", "1.5s", "s", "20 s", "1e1", "nan", "9" * 40])
def test_no_duration(value: str) -> None:
    assert refused(f"wait={quote(value)}") == "wait"


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
    assert query(f"at={quote(value)}").at == moment


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
    assert refused(f"at={quote(value)}") == "at"


def status_of(raw: str) -> int:
    """The status of the answer to these parameters, where only they can be wrong."""
    try:
        query(raw)
    except Problem as problem:
        return problem.status
    return 200


@pytest.mark.parametrize("name", ["at", "wait", "sinceVersion", "state", "stuck", "q", "limit"])
@given(st.text(max_size=60))
def test_no_value_makes_the_server_stumble(name: str, text: str) -> None:
    assert status_of(f"{name}={quote(text, errors='replace')}") in (200, 400)
