"""Are lengths of time read as they are written, and are dice fair and the same each time?"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrix.errors import Invalid
from orchestrix.testing.durations import between, is_span, seconds_of
from orchestrix.testing.simulation.rng import SeededRng


@pytest.mark.parametrize(
    ("span", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86400), (7, 7), (timedelta(minutes=1), 60)],
)
def test_lengths_of_time(span: str | float | timedelta, seconds: float) -> None:
    assert is_span(span)
    assert seconds_of(span) == seconds
    assert seconds in between(span, span)


@pytest.mark.parametrize("text", ["30", "s", "-1s", "1 s", "1w", ""])
def test_what_is_no_length_of_time(text: str) -> None:
    assert not is_span(text)
    with pytest.raises(Invalid, match="is not a duration: write 500ms, 30s"):
        seconds_of(text)


def test_a_time_between_two_others() -> None:
    assert 1.0 in between("1s", "2s")
    assert 0.999 not in between("1s", "2s")
    assert 2.001 not in between("1s", "2s")
    assert str(between("1s", "2m")) == "from 1 s to 120 s"


def test_dice_fall_the_same_way_each_time() -> None:
    def thrown(seed: str) -> list[object]:
        dice = SeededRng(seed)
        return [dice.random(), dice.uniform(2, 3), dice.randrange(5, 9), dice.choice("abc"), dice.randbytes(4)]

    assert thrown("a") == thrown("a") != thrown("b")


def test_dice_reach_all_and_no_more() -> None:
    dice = SeededRng("a")
    assert {dice.randrange(5, 8) for _ in range(100)} == {5, 6, 7}
    numbers = [dice.random() for _ in range(1000)]
    assert 0.0 <= min(numbers) < 0.05
    assert 0.95 < max(numbers) < 1.0
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.05)
