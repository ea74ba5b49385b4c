"""Are counts and durations told in the singular, the plural and the largest units?"""

from __future__ import annotations

import pytest

from orchestrix.quantities import counted, duration


@pytest.mark.parametrize(
    ("count", "noun", "says"),
    [(0, ("job",), "0 jobs"), (1, ("job",), "1 job"), (2, ("job",), "2 jobs"), (2, ("entry", "entries"), "2 entries")],
)
def test_a_noun_has_its_number(count: int, noun: tuple[str, ...], says: str) -> None:
    assert counted(count, *noun) == says


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (-3, "0 s"),
        (0, "0 s"),
        (0.5, "0.5 s"),
        (9.9999, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3581, "59 min 41 s"),
        (3600, "1 h"),
        (3601, "1 h"),
        (7260, "2 h 1 min"),
        (86_460, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, says: str) -> None:
    assert duration(seconds) == says
