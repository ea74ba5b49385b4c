"""How does text from outside become text that every database can store?"""

from __future__ import annotations


def storable(text: str, limit: int | None = None) -> str:
    """`text` without what not every database takes (NUL, lone surrogates), at most `limit` code points long.

    For what strangers send and nobody has checked: a bad letter in a reason must not fail the batch around it.
    """
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        text = text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text[:limit]
