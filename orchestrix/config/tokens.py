"""API tokens: reads names and secrets, and refuses those that could be guessed or look like another actor's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
SECRET: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
SECRET_MIN_CHARS: Final = 6
SECRET_RECOMMENDED_CHARS: Final = 16
"""Characters that a secret has to have, and those below which it is said that it can be guessed."""
_OTHERS: Final = ("anonymous", "orchestrator")
"""Other actors in histories; a token must not have such a name."""


def tokens_in(table: object) -> object:
    """The same of a table that has a secret for each name; what is no such table comes back as it is."""
    if not isinstance(table, Mapping) or not all(isinstance(one, str) for pair in table.items() for one in pair):
        return table
    return tokens_of(",".join(f"{name}:{secret}" for name, secret in table.items()))


def tokens_of(text: str) -> dict[str, str]:
    """The secrets of `name:secret,…` by their names. Raises `ValueError`.

    An error names the position only: any part of the text can be a secret.
    """
    found: dict[str, str] = {}
    for place, part in enumerate(text.split(",") if text.strip() else (), 1):
        name, _, secret = part.strip().partition(":")
        if not _TOKEN_NAME.fullmatch(name) or not SECRET.fullmatch(secret):
            raise ValueError(
                f"token {place} must be name:secret; a name has 1 to 100 letters, digits or _.@-, a secret visible "
                "ASCII characters without a comma"
            )
        if name in _OTHERS:
            raise ValueError(f"token {place}: the name {name} is reserved (histories use it): choose another name")
        if len(secret) < SECRET_MIN_CHARS:
            least = f"at least {SECRET_MIN_CHARS} characters, better {SECRET_RECOMMENDED_CHARS}"
            raise ValueError(f"the secret of token {place} is too short: use {least}")
        if name in found or secret in found.values():
            raise ValueError(f"the name or the secret of token {place} was given more than once: each must be unique")
        found[name] = secret
    return found
