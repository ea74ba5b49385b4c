"""Idempotency: answers a request that was answered before with the stored answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from orchestrix.api.headers import CORRELATION, IDEMPOTENCY_KEY, correlation_id
from orchestrix.api.problems import Problem, bad_header
from orchestrix.domain.idempotency import InFlight, Keyed, KeyReused, Repeated, Replayed, StoredAnswer
from orchestrix.saga.messages import dump

R = TypeVar("R")
REPLAYED: Final = "Idempotent-Replayed"
REUSED: Final = (
    "This Idempotency-Key came before, with another body. Send the same body again for the answer to that request, "
    "or a new key for a new one."
)
RETRY_SOON: Final = {"Retry-After": "1"}
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


def key_of(request: Request, actor: str, body: Mapping[str, Any], render: Callable[[R], Response]) -> Keyed[R] | None:
    """The request's key, whose answers are made by `render` of what was done; None without one.

    It is the key of `actor` alone: no client gets an answer that was made for another one. Raises `Problem` 400.
    """
    values = request.headers.getlist(IDEMPOTENCY_KEY)
    if not values:
        return None
    if len(values) > 1:
        raise bad_header(IDEMPOTENCY_KEY, "was given more than once.")
    key = plain_key(values[0])
    place = [request.method, request.scope["path"]]
    canonical = json.dumps([*place, body], sort_keys=True, separators=(",", ":"))
    fingerprint = sha256(canonical.encode()).hexdigest()
    scope = sha256(dump([actor, *place])).hexdigest()

    def stored(done: R) -> StoredAnswer:
        answer = render(done)
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        headers[CORRELATION.lower()] = correlation_id(request)
        return StoredAnswer(fingerprint, answer.status_code, headers, bytes(answer.body))

    return Keyed(scope, key, fingerprint, stored)


def repeated(result: Repeated) -> Response:
    """What is answered to a key that came before: the stored answer. Raises `Problem` 409 or 422."""
    match result:
        case Replayed(answer):
            return Response(answer.body, answer.status, {**answer.headers, REPLAYED: "true"})
        case KeyReused():
            raise Problem("idempotency_key_reused", REUSED)
        case InFlight():
            detail = "The request with this key is still being worked on. Send it again, with the same key and body."
            raise Problem("idempotency_in_flight", detail, headers=RETRY_SOON)


def plain_key(value: str) -> str:
    """The key in `value`: a string of RFC 9651 (in quotes) or bare. Raises `Problem` 400."""
    text = value.strip()
    if text.startswith('"'):
        match = _QUOTED.fullmatch(text)
        text = re.sub(r"\\(.)", r"\1", match[1]) if match else ""
    if not _KEY.fullmatch(text):
        raise bad_header(IDEMPOTENCY_KEY, "must be 1 to 255 visible ASCII characters, bare or in quotes.")
    return text
