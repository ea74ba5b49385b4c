"""Names: normalizes and checks the names of instances, people and jobs."""

from __future__ import annotations

import unicodedata
from typing import Final

MAX_NAME_LENGTH: Final = 200


def normal(name: str) -> str:
    """`name` in NFC. Raises `ValueError` that says what is wrong with it."""
    text = unicodedata.normalize("NFC", name)
    if not 1 <= len(text) <= MAX_NAME_LENGTH:
        raise ValueError(f"must have 1 to {MAX_NAME_LENGTH} code points, not {len(text)}")
    if not text.isprintable() and any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise ValueError("must not contain control characters or lone surrogates")
    if text != text.strip():
        raise ValueError("must not begin or end with white space")
    return text
