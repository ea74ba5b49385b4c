"""Who is asking?"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from starlette.requests import Request

from app.api.problems import Problem

ANONYMOUS: Final = "anonymous"
_ASK: Final = "send Authorization: Bearer and your secret"


def actor(request: Request, tokens: Mapping[str, str]) -> str:
    """The name of the token that the request carries (RFC 6750, 2.1), `anonymous` where there are no tokens at all.

    Raises `Problem` 401. All tokens are compared, and each in the same time, so that the time tells nothing.
    """
    if not tokens:
        return ANONYMOUS
    given = request.headers.getlist("authorization")
    if not given:
        raise _unauthorized(f"This API wants to know who asks: {_ASK}.", "Bearer")
    secret = _digest(_secret(given))
    holders = [name for name, held in tokens.items() if compare_digest(_digest(held), secret)]
    if not holders:
        raise _unauthorized(f"Nobody has this token: {_ASK}.", 'Bearer error="invalid_token"')
    return holders[0]


def knows(request: Request, tokens: Mapping[str, str]) -> bool:
    """Whether whoever asks may know what is only told to those who have a token."""
    if tokens and not request.headers.getlist("authorization"):
        return False
    try:
        actor(request, tokens)
    except Problem:
        return False
    return True


def _secret(given: list[str]) -> str:
    """What stands behind `Bearer`; empty, which no token is, where the header is none of that kind."""
    scheme, _, secret = given[0].strip().partition(" ")
    return secret.strip() if len(given) == 1 and scheme.lower() == "bearer" else ""


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _unauthorized(detail: str, challenge: str) -> Problem:
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": challenge})
