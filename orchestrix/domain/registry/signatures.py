"""Call signatures: how a node signs its calls to an executor, and how that checks them."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import Final

SIGNATURE_HEADER: Final = "X-Orchestrix-Signature"
MAX_AGE_S: Final = 60
"""Seconds for which a signature is good, and by which the clocks of a node and an executor may differ."""
_FORM: Final = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})", re.ASCII)


def sign(token: str, body: bytes, now: float) -> str:
    """The header of a call with this body; `now` is in seconds since 1970, `token` the registry token of the app."""
    time = int(now)
    return f"t={time},v1={_digest(token, time, body)}"


def signature_refusal(token: str, header: str | None, body: bytes, now: float) -> str | None:
    """Why the header does not show that a node has just sent this body; None if it does."""
    if header is None:
        return f"the call is not signed: {SIGNATURE_HEADER} is missing"
    found = _FORM.fullmatch(header)
    if found is None:
        return f"{SIGNATURE_HEADER} must be t=<unix seconds>,v1=<64 hex digits>"
    time = int(found[1])
    if not hmac.compare_digest(found[2], _digest(token, time, body)):
        return "the signature is wrong: node and executor need the same registry token"
    if abs(now - time) > MAX_AGE_S:
        return f"the signature is older than {MAX_AGE_S} s, or the clocks differ by more than that"
    return None


def _digest(token: str, time: int, body: bytes) -> str:
    return hmac.new(token.encode(), b"%d." % time + body, sha256).hexdigest()
