"""How does text from outside become text that every database can store?"""

from __future__ import annotations

from sagas.engine.messages import storable


def cleaned(text: str, limit: int | None = None) -> str:
    """`text` without what not every database takes (NUL, lone surrogates), at most `limit` code points long.

    For what strangers send and nobody has checked: a bad letter in a reason must not fail the batch around it.
    """
    if not storable(text):
        text = text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text[:limit]
