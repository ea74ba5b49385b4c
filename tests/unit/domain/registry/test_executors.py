"""Which state is an executor in, when may it be removed, and what brings it back after its goodbye?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.registry.executors import ExecutorState, Goodbye, beats_after_goodbye, may_remove, state_of

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
BEAT, DEAD = 30.0, 90.0


def at(seconds: float) -> datetime:
    return FIRST + timedelta(seconds=seconds)


def state(
    last: float, now: float, *, leaving: bool = False, beat: float = BEAT, dead: float = DEAD
) -> tuple[str, float]:
    """The state at `now` with the last heartbeat at `last`, the first one at 0; and the second at which it began."""
    found, since = state_of(
        first_seen=FIRST,
        last_seen=at(last),
        leaving=leaving,
        now=at(now),
        beat_seconds=beat,
        dead_seconds=dead,
    )
    return found.value, (since - FIRST) / timedelta(seconds=1)


@pytest.mark.req("S2-44")
def test_the_first_heartbeat_registers_and_the_second_makes_it_healthy() -> None:
    assert [state(0, 0), state(0, 33)] == [("REGISTERING", 0), ("REGISTERING", 0)]
    assert [state(30, 30), state(30, 63)] == [("HEALTHY", 0), ("HEALTHY", 0)]


@pytest.mark.req("S2-46")
@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (123, ("HEALTHY", 0)),
        (123.1, ("GRACE_30", 123)),
        (149.9, ("GRACE_30", 123)),
        (150, ("GRACE_60", 150)),
        (179.9, ("GRACE_60", 150)),
        (180, ("GRACE_90", 180)),
        (9999, ("GRACE_90", 180)),
    ],
)
def test_a_crash_goes_through_the_three_steps_of_grace(now: float, expected: tuple[str, float]) -> None:
    assert state(90, now) == expected


def test_an_executor_that_never_sent_a_second_heartbeat_is_no_longer_registering() -> None:
    assert state(0, 34) == ("GRACE_30", 33)


@pytest.mark.req("S2-47")
@pytest.mark.parametrize("missed_until", [140, 170, 179.9])
def test_a_heartbeat_ends_the_grace(missed_until: float) -> None:
    assert state(90, missed_until)[0].startswith("GRACE")
    assert state(missed_until, missed_until + 1) == ("HEALTHY", 0)


@pytest.mark.parametrize("now", [31, 100, 9999])
def test_who_leaves_is_deregistering_however_long_ago_it_said_so(now: float) -> None:
    assert state(30, now, leaving=True) == ("DEREGISTERING", 30)


@pytest.mark.parametrize(
    ("now", "dead", "expected"),
    [
        (11.5, 60, ("GRACE_30", 11)),
        (59.9, 60, ("GRACE_60", 20)),
        (60, 60, ("GRACE_90", 60)),
        (19.9, 20, ("GRACE_30", 11)),
        (20, 20, ("GRACE_90", 20)),
        (10.5, 10, ("GRACE_90", 10)),
    ],
)
def test_other_times_keep_the_order_of_the_steps(now: float, dead: float, expected: tuple[str, float]) -> None:
    assert state(0, now, beat=10, dead=dead) == expected


def test_a_heartbeat_from_before_the_clock_was_set_back_does_not_count() -> None:
    assert state(3600, 100) == ("GRACE_90", 100)
    assert state(102, 100) == ("HEALTHY", 0), "estimates of one clock differ by a little"


@given(st.floats(1, 100), st.floats(1, 10), st.lists(st.floats(0, 5000), min_size=2, max_size=9))
def test_silence_only_ever_leads_on_and_no_state_begins_in_the_future(
    beat: float, factor: float, moments: list[float]
) -> None:
    order = [one.value for one in ExecutorState]
    found = [(now, *state(5, 5 + now, beat=beat, dead=beat * factor)) for now in sorted(moments)]
    assert [one for _, one, _ in found] == sorted((one for _, one, _ in found), key=order.index)
    assert all(since <= 5 + now + 1e-6 for now, _, since in found)  # stored to the microsecond
    assert "REMOVED" not in {one for _, one, _ in found}, "only the reaper removes"


# The reaper. Seconds: it has listened since 0.


def threshold(now: float, heard: float | None, since: float = 0, beat: float = BEAT) -> float | None:
    found = may_remove(
        now=at(now),
        listening_since=at(since),
        last_heard_any=None if heard is None else at(heard),
        beat_seconds=beat,
        dead_seconds=DEAD,
    )
    return None if found is None else (found - FIRST) / timedelta(seconds=1)


@pytest.mark.parametrize(("now", "expected"), [(0, None), (89.9, None), (90, 0), (500, 410)])
def test_the_reaper_listens_for_one_dead_time_first(now: float, expected: float | None) -> None:
    assert threshold(now, heard=now) == expected


def test_an_outage_begins_the_listening_again() -> None:
    assert threshold(10_000, heard=9_999) == 9_910
    assert threshold(10_000, heard=9_999, since=9_950) is None
    assert threshold(10_040, heard=10_039, since=9_950) == 9_950


@pytest.mark.parametrize(
    ("silent", "removes"),
    [(0, True), (33, True), (33.1, False), (90, False), (179.9, False), (180, True), (9999, True)],
)
def test_where_none_sends_a_heartbeat_none_is_removed_until_twice_the_dead_time(silent: float, removes: bool) -> None:
    assert (threshold(1000 + silent, heard=1000) is not None) is removes


def test_a_heartbeat_that_is_only_just_due_holds_nothing_up() -> None:
    """The reaper runs as often as executors send: it may find the last heartbeat just one interval old every time."""
    assert all(threshold(1000 + 30 * n, heard=1000 + 30 * n - 30.2) is not None for n in range(5))


def test_one_heartbeat_after_a_silence_of_all_lets_the_dead_be_removed() -> None:
    assert threshold(1100, heard=1000) is None
    assert threshold(1101, heard=1100) == 1011


@pytest.mark.parametrize("heard", [None, -5000, -1])
def test_a_silence_counts_from_when_somebody_listened(heard: float | None) -> None:
    assert threshold(100, heard) is None
    assert threshold(179.9, heard) is None
    assert threshold(180, heard) == 90


@pytest.mark.parametrize("back", [60, 86_400])
def test_a_clock_that_was_set_back_removes_nobody_who_still_sends(back: float) -> None:
    found = threshold(1000, heard=1000 + back)
    assert found is None or found <= 1000 - DEAD


# A goodbye at 0.


@pytest.mark.parametrize(
    ("left", "instance", "seconds", "returns"),
    [
        ("a", "a", 0, False),
        ("a", "a", 89.9, False),
        ("a", "a", 90, True),
        ("a", "b", 0, True),
        ("a", None, 0, True),
        (None, None, 0, False),
        (None, None, 1.9, False),
        (None, None, 2, True),
        (None, "a", 0, True),
    ],
)
def test_a_goodbye_outlives_the_heartbeats_of_its_process(
    left: str | None, instance: str | None, seconds: float, returns: bool
) -> None:
    assert beats_after_goodbye(Goodbye(FIRST, left), instance=instance, now=at(seconds)) is returns


def test_who_said_no_goodbye_registers_and_one_from_the_future_is_not_believed() -> None:
    assert beats_after_goodbye(None, instance="a", now=FIRST)
    assert beats_after_goodbye(Goodbye(at(3600), "a"), instance="a", now=FIRST)
