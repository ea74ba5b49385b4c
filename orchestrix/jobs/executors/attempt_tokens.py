"""Attempt tokens: what an executor proves by that a report is about the attempt that it was called for."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

_PURPOSE: Final = b"orchestrix attempt "


def attempt_token(key: bytes, history_id: str) -> str:
    """The token of an attempt: 64 hex digits, an HMAC-SHA256 of its history id by the installation's `key`.

    It is good for that attempt alone, and reveals nothing about any other.
    """
    return hmac.new(key, _PURPOSE + history_id.encode(), sha256).hexdigest()


def is_attempt_token(key: bytes, history_id: str, token: str) -> bool:
    """Whether that is the attempt's token; the time of the answer does not depend on how much of it is right."""
    return hmac.compare_digest(attempt_token(key, history_id).encode(), token.encode())
