"""Which names are let in?"""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.saga.validation.names import normal

FINE = [
    "billing",
    "Billing",
    "BILLING",
    "a",
    "x" * 200,
    "🚀" * 200,
    "👩‍👩‍👧‍👦 family",
    "naïve",
    "../../etc/passwd",
    'it\'s "quoted"; DROP TABLE apps; --',
    "日本語のアプリ",
    "%_\\",
    "a\u00a0b",
    "ﬁ",
    "\u200bzero width",
]
BAD = [
    "",
    "x" * 201,
    "🚀" * 201,
    "tab\there",
    "new\nline",
    "nul\0",
    "del\x7f",
    "c1\x85",
    "\ud800",
    " leading",
    "trailing ",
    "\u00a0leading",
    "trailing\u2003",
    "trailing\u2028",
    "\u3000",
]


@pytest.mark.parametrize("name", FINE)
def test_is_let_in(name: str) -> None:
    assert normal(name) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize("name", BAD)
def test_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        normal(name)


def test_length_counts_after_composition() -> None:
    assert normal("e\u0301" * 200) == "é" * 200
    with pytest.raises(ValueError, match="201"):
        normal("e\u0301" * 201)


def test_composed_and_decomposed_are_one_name() -> None:
    assert normal("Cafe\u0301") == normal("Café")


@given(st.text(max_size=220))
def test_what_is_let_in_stays_as_it_is(text: str) -> None:
    try:
        name = normal(text)
    except ValueError:
        return
    assert normal(name) == name
    assert 1 <= len(name) <= 200
    assert name.strip() == name
