"""Which names are accepted?"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Final

from pydantic import AfterValidator, Field

LONGEST: Final = 200
ABOUT: Final = (
    "Brought to Unicode NFC, then 1 to 200 code points without control characters and without white space around it. "
    "Upper and lower case are different names."
)


def normal(name: str) -> str:
    """`name` in NFC. Raises `ValueError` that says what is wrong with it."""
    text = unicodedata.normalize("NFC", name)
    if not 1 <= len(text) <= LONGEST:
        raise ValueError(f"must have 1 to {LONGEST} code points, not {len(text)}")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise ValueError("must not have control characters or lone surrogates")
    if text != text.strip():
        raise ValueError("must not begin or end with white space")
    return text


Name = Annotated[
    str, AfterValidator(normal), Field(description=ABOUT, json_schema_extra={"minLength": 1, "maxLength": LONGEST})
]
