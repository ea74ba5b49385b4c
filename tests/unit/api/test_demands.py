"""Which lengths of time and which reasons are taken from a person?"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrix.api.values import LONGEST_REASON, read_span, sentence


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1ms", 0.001),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("3650d", 315_360_000),
        ("0.5", 0.5),
        (7, 7),
        (0.25, 0.25),
    ],
)
def test_a_span(value: object, seconds: float) -> None:
    assert read_span(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "5 m",
        "-5m",
        "5min",
        "1e3",
        "٣s",
        "0s",
        0,
        -1,
        True,
        None,
        [],
        float("inf"),
        float("nan"),
        "3651d",
        10**40,
    ],
)
def test_what_is_no_span(value: object) -> None:
    with pytest.raises(ValueError, match=r"must be seconds, or a text .* from 1ms to 3650d"):
        read_span(value)


def test_a_reason() -> None:
    assert sentence("Cafe\u0301 is shut") == "Caf\u00e9 is shut"
    assert len(sentence("x" * LONGEST_REASON)) == LONGEST_REASON


@pytest.mark.parametrize("text", ["", "  ", "x" * (LONGEST_REASON + 1), "a\nb", "\x00", "\ud800", "\u0085"])
def test_what_is_no_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        sentence(text)
