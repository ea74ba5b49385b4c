"""Is a cron expression due when people expect it, also on the days when clocks are changed?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.cron import ALIASES, Cron
from orchestrix.errors import Invalid

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia")
EXPRESSIONS = (
    "30 2 * * *",
    "*/15 2 * * *",
    "0 */2 * * *",
    "15,45 1-3 * * *",
    "0 0 * * *",
    "20 * * * *",
    "*/7 * * * *",
    "59 23 28-31 * *",
    "0 12 1 * MON",
)


def dues(expression: str, zone: str, since: str, count: int) -> list[str]:
    """The first due times after `since`, which is local, as the clocks show them."""
    place = ZoneInfo(zone)
    cron, moment = Cron(expression, place), datetime.fromisoformat(since).replace(tzinfo=place).astimezone(UTC)
    found = []
    for _ in range(count):
        due = cron.after(moment)
        assert due is not None
        found.append(due.astimezone(place).strftime("%Y-%m-%d %H:%M %z"))
        moment = due
    return found


@pytest.mark.parametrize(
    ("expression", "since", "expected"),
    [
        ("30 9 * * MON-FRI", "2026-01-02 12:00", ["2026-01-05 09:30", "2026-01-06 09:30"]),
        ("*/20 8-9 * * *", "2026-01-01 08:30", ["2026-01-01 08:40", "2026-01-01 09:00", "2026-01-01 09:20"]),
        ("5-20/5 0 * * *", "2026-01-01 00:06", ["2026-01-01 00:10", "2026-01-01 00:15", "2026-01-01 00:20"]),
        ("0 0 1 jan,jul *", "2026-01-01 00:00", ["2026-07-01 00:00", "2027-01-01 00:00"]),
        ("0 0 * * 7", "2026-01-01 00:00", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 0", "2026-01-01 00:00", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 31 * *", "2026-01-31 00:00", ["2026-03-31 00:00", "2026-05-31 00:00"]),
        ("0 0 30 * *", "2026-01-30 00:00", ["2026-03-30 00:00", "2026-04-30 00:00"]),
        ("0 0 29 2 *", "2026-01-01 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 2 *", "2097-01-01 00:00", ["2104-02-29 00:00"]),
        ("0 0 28-31 2 *", "2026-02-27 00:00", ["2026-02-28 00:00", "2027-02-28 00:00"]),
        ("0 0 28-31 2 *", "2028-02-27 00:00", ["2028-02-28 00:00", "2028-02-29 00:00", "2029-02-28 00:00"]),
        ("0 0 13 * FRI", "2026-02-01 00:00", ["2026-02-06 00:00", "2026-02-13 00:00", "2026-02-20 00:00"]),
        ("0 0 */1 * FRI", "2026-02-01 00:00", ["2026-02-06 00:00", "2026-02-13 00:00"]),
        ("@weekly", "2026-01-01 00:00", ["2026-01-04 00:00"]),
        ("@YEARLY", "2026-01-01 00:00", ["2027-01-01 00:00"]),
        (" 0  0\t1 1 * ", "2026-01-01 00:00", ["2027-01-01 00:00"]),
    ],
)
def test_days_and_hours(expression: str, since: str, expected: list[str]) -> None:
    assert dues(expression, "UTC", since, len(expected)) == [f"{one} +0000" for one in expected]


@pytest.mark.parametrize(
    ("zone", "expression", "since", "expected"),
    [
        # The hour that is left out: 02:00 to 03:00 in Berlin on 29 March 2026, in New York on 8 March.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28 12:00", ["2026-03-29 03:00 +0200", "2026-03-30 02:30 +0200"]),
        ("Europe/Berlin", "*/15 2 * * *", "2026-03-29 00:00", ["2026-03-29 03:00 +0200", "2026-03-30 02:00 +0200"]),
        ("Europe/Berlin", "0 2,3 * * *", "2026-03-29 00:00", ["2026-03-29 03:00 +0200", "2026-03-30 02:00 +0200"]),
        ("Europe/Berlin", "30 2,3 * * *", "2026-03-29 00:00", ["2026-03-29 03:00 +0200", "2026-03-29 03:30 +0200"]),
        ("Europe/Berlin", "0 9 * * *", "2026-03-28 09:00", ["2026-03-29 09:00 +0200", "2026-03-30 09:00 +0200"]),
        ("America/New_York", "30 2 * * *", "2026-03-07 12:00", ["2026-03-08 03:00 -0400", "2026-03-09 02:30 -0400"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", ["2026-10-04 02:30 +1100", "2026-10-05 02:15 +1100"]),
        # Midnight is left out.
        ("Africa/Cairo", "0 0 * * *", "2026-04-23 12:00", ["2026-04-24 01:00 +0300", "2026-04-25 00:00 +0300"]),
        # A whole day is left out: Samoa had no 30 December 2011.
        ("Pacific/Apia", "0 8 * * *", "2011-12-29 09:00", ["2011-12-31 00:00 +1400", "2011-12-31 08:00 +1400"]),
    ],
)
def test_a_time_that_clocks_leave_out_is_due_right_after(
    zone: str, expression: str, since: str, expected: list[str]
) -> None:
    assert dues(expression, zone, since, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "expression", "since", "expected"),
    [
        # The hour that comes twice: 02:00 in Berlin on 25 October 2026, 01:00 in New York on 1 November.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24 12:00", ["2026-10-25 02:30 +0200", "2026-10-26 02:30 +0100"]),
        ("Europe/Berlin", "0 */2 * * *", "2026-10-25 00:00", ["2026-10-25 02:00 +0200", "2026-10-25 04:00 +0100"]),
        ("America/New_York", "59 1 * * *", "2026-10-31 12:00", ["2026-11-01 01:59 -0400", "2026-11-02 01:59 -0500"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04 12:00", ["2026-04-05 01:45 +1100", "2026-04-06 01:45 +1030"]),
    ],
)
def test_a_time_that_comes_twice_is_due_the_first_time(
    zone: str, expression: str, since: str, expected: list[str]
) -> None:
    assert dues(expression, zone, since, len(expected)) == expected


def test_looking_from_the_second_of_two_equal_hours_finds_the_next_day() -> None:
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 in Berlin for the second time
    assert Cron("30 2 * * *", ZoneInfo("Europe/Berlin")).after(second) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "since", "minutes"),
    [
        ("Europe/Berlin", "2026-03-29 00:30", 60),
        ("Europe/Berlin", "2026-10-25 00:30", 60),
        ("America/New_York", "2026-11-01 00:30", 60),
    ],
)
def test_what_is_due_in_every_hour_keeps_its_distance(zone: str, since: str, minutes: int) -> None:
    for expression, distance in (("30 * * * *", minutes), ("*/15 * * * *", 15)):
        found = [datetime.strptime(one, "%Y-%m-%d %H:%M %z") for one in dues(expression, zone, since, 12)]
        assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=distance)}


def test_half_an_hour_can_be_left_out_and_come_twice() -> None:
    zone = "Australia/Lord_Howe"
    assert dues("0,30 * * * *", zone, "2026-10-04 01:00", 3) == [
        "2026-10-04 01:30 +1030",
        "2026-10-04 02:30 +1100",
        "2026-10-04 03:00 +1100",
    ]
    assert dues("45 * * * *", zone, "2026-04-05 01:00", 3) == [
        "2026-04-05 01:45 +1100",
        "2026-04-05 01:45 +1030",
        "2026-04-05 02:45 +1030",
    ]


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2025, 12, 1), datetime(2027, 2, 1)),
    st.floats(0, 1),
)
def test_the_next_time_is_the_same_from_wherever_one_looks(
    expression: str, zone: str, since: datetime, part: float
) -> None:
    cron, moment = Cron(expression, ZoneInfo(zone)), since.replace(tzinfo=UTC)
    due = cron.after(moment)
    assert due is not None
    assert due > moment
    assert due.second == due.microsecond == 0
    between = moment + (due - moment) * part
    if between < due:
        assert cron.after(between) == due


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), st.datetimes(datetime(2025, 12, 1), datetime(2027, 2, 1)))
def test_a_local_hour_is_due_once_on_each_of_its_days(expression: str, zone: str, since: datetime) -> None:
    place, moment = ZoneInfo(zone), since.replace(tzinfo=UTC)
    found = []
    for _ in range(40):
        due = Cron(expression, place).after(moment)
        assert due is not None
        found.append(due.astimezone(place).replace(tzinfo=None))
        moment = due
    if expression.split()[1] != "*":
        assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("61 * * * *", "the minute '61'"),
        ("-1 * * * *", "the minute '-1'"),
        ("*/0 * * * *", "the minute '*/0', whose step does not fit: write one from 1 to 60"),
        ("*/61 * * * *", "the minute '*/61', whose step does not fit: write one from 1 to 60"),
        ("0,5-10/99 * * * *", "the minute '5-10/99', whose step does not fit"),
        ("5/100000000000 * * * *", "whose step does not fit: write one from 1 to 60"),
        ("0 */25 * * *", "the hour '*/25', whose step does not fit: write one from 1 to 24"),
        ("0 0 */32 * *", "the day of month '*/32', whose step does not fit: write one from 1 to 31"),
        ("0 0 1 */13 *", "the month '*/13', whose step does not fit: write one from 1 to 12"),
        ("0 0 * * */8", "the day of week '*/8', whose step does not fit: write one from 1 to 7"),
        ("5-3 * * * *", "the minute '5-3'"),
        ("5-1 * * * *", "the minute '5-1'"),
        ("1,,2 * * * *", "the minute ''"),
        ("*-5 * * * *", "the minute '*-5'"),
        ("1-2-3 * * * *", "the minute '1-2-3'"),
        ("٣ * * * *", "the minute"),
        ("0 24 * * *", "the hour '24'"),
        ("0 0 0 * *", "the day of month '0'"),
        ("0 0 L * *", "the day of month 'L'"),
        ("0 0 LW * *", "the day of month 'LW'"),
        ("0 0 15W * *", "the day of month '15W'"),
        ("0 0 * 13 *", "the month '13'"),
        ("0 0 * FOO *", "JAN to DEC"),
        ("0 0 * MON *", "the month 'MON'"),
        ("0 0 * * 8", "the day of week '8'"),
        ("0 0 * * 5L", "the day of week '5L'"),
        ("0 0 * * MON#2", "the day of week 'MON#2'"),
        ("0 0 * * SAT-FOO", "Sunday is 0, 7 or SUN"),
        ("0 0 ? * *", "the day of month '?'"),
        ("* * * *", "not 4"),
        ("0 * * * * *", "not 6"),
        ("", "not 0"),
        ("@reboot", "@hourly"),
        ("0 0 31 2 *", "is never due"),
        ("0 0 30-31 2 *", "is never due"),
        ("0 0 31 4,6,9,11 *", "is never due"),
        ("1," * 150 + "1 * * * *", "at most 200"),
    ],
)
def test_what_cannot_be_read_is_named(expression: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        Cron(expression, UTC).check_new()
    assert str(refused.value).startswith("cron ")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "instead"),
    [
        ("0 0 * * MON-SUN", "* or MON-SAT,SUN"),
        ("0 0 * * sat-sun", "SAT,SUN"),
        ("0 0 * * FRI-MON", "FRI-SAT,SUN-MON"),
        ("0 0 * * 5-1", "5-6,0-1"),
        ("0 0 * * 7-3", "0-3"),
        ("0 22-6 * * *", "22-23,0-6"),
        ("0 1-0 * * *", "* or 1-23,0"),
        ("0 0 1 NOV-FEB *", "NOV-DEC,JAN-FEB"),
        ("0 0 28-3 * *", "28-31,1-3"),
    ],
)
def test_a_range_over_the_end_is_told_how_to_be_written(expression: str, instead: str) -> None:
    with pytest.raises(Invalid) as refused:
        Cron(expression, UTC)
    assert str(refused.value).endswith(f"whose range goes from high to low: write {instead}")
    wrong = next(part for part in expression.split() if "-" in part)
    Cron(expression.replace(wrong, instead.removeprefix("* or ")), UTC).check_new()


def test_no_other_way_is_told_for_a_range_over_the_end_with_steps() -> None:
    with pytest.raises(Invalid, match=r"the hour '22-6/2', whose range goes from high to low: write two ranges"):
        Cron("0 22-6/2 * * *", UTC)


def test_a_step_that_an_earlier_version_has_let_in_is_still_read() -> None:
    due = Cron("*/90 * * * *", UTC).after(datetime(2026, 1, 1, tzinfo=UTC))
    assert due == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_every_short_name_can_be_read() -> None:
    for alias in ALIASES:
        Cron(alias, UTC).check_new()
        assert Cron(alias, UTC).after(datetime(2026, 1, 1, tzinfo=UTC)) is not None
