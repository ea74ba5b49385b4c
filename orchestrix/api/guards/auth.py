"""Authentication: who calls, and how many wrong tokens an address may try."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from starlette.requests import Request

from orchestrix import clock
from orchestrix.api.problems import Problem
from orchestrix.telemetry.log_throttle import LogThrottle

log = logging.getLogger("orchestrix.api")

ANONYMOUS: Final = "anonymous"
EXECUTORS_OF: Final = "executors:"
"""How the names of the tokens of executors begin; then comes their app, if they are for one."""
GUESSES: Final = 20
"""Wrong tokens that an address may send at once."""
GUESS_S: Final = 3.0
"""Seconds after which it may send one more."""
MOST_ADDRESSES: Final = 10_000
_ASK: Final = 'send "Authorization: Bearer <token>"'


def actor(request: Request, tokens: Mapping[str, str]) -> str:
    """The name of the token that the request carries (RFC 6750, 2.1), `anonymous` where there are no tokens at all.

    Raises `Problem` 401. All tokens are compared, and each in the same time, so that the time reveals nothing.
    """
    if not tokens:
        return ANONYMOUS
    given = request.headers.getlist("authorization")
    if not given:
        raise _unauthorized(f"Authentication required: {_ASK}.", "Bearer")
    secret = _digest(_secret(given))
    holders = [name for name, held in tokens.items() if compare_digest(_digest(held), secret)]
    if not holders:
        raise _unauthorized("Invalid token.", 'Bearer error="invalid_token"')
    return holders[0]


def token_of(request: Request) -> str:
    """The token that the request carries; empty, which no token is, without one."""
    return _secret(request.headers.getlist("authorization") or [""])


def invalid_token() -> Problem:
    """401 for a token that does not open this."""
    return _unauthorized("Invalid token.", 'Bearer error="invalid_token"')


class Authenticator:
    """Lets in who has a token, and limits the guesses of an address.

    An address without guesses left gets 429 whatever it sends, so that a right guess reveals nothing, but for tokens
    that came from it before: guesses behind a proxy do not lock out the other users there.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._guesses: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lines = LogThrottle()

    def with_more(self, tokens: Mapping[str, str]) -> Authenticator:
        """One that lets in these tokens too. Both count guesses together: an address has no more for two of them."""
        other = Authenticator({**tokens, **self._tokens})
        other._guesses, other._known, other._lines = self._guesses, self._known, self._lines
        return other

    def admit(self, request: Request) -> str:
        """The name of who asks. Raises `Problem` 401 and 429."""
        if not self._tokens:
            return ANONYMOUS
        address = client(request)
        left = self._left(address)
        try:
            name = actor(request, self._tokens)
        except Problem as refused:
            self._log(request, address, refused)
            if "authorization" not in request.headers:
                raise  # not a wrong token
            if left < 1:
                raise _too_often() from None
            self._guesses[address] = (left - 1, clock.monotonic())
            self._guesses.move_to_end(address)
            _bounded(self._guesses)
            raise
        if left < 1 and (address, name) not in self._known:
            raise _too_often()
        self._known[address, name] = None
        self._known.move_to_end((address, name))
        _bounded(self._known)
        return name

    def knows(self, request: Request) -> bool:
        """Whether whoever asks may know what is shown only to those who have a token. A wrong one is a guess here, too;
        none at all leaves no line: probes send none.
        """
        if self._tokens and "authorization" not in request.headers:
            return False
        try:
            self.admit(request)
        except Problem:
            return False
        return True

    def _left(self, address: str) -> float:
        """How many guesses the address has now."""
        if address not in self._guesses:
            return GUESSES
        left, when = self._guesses[address]
        return min(GUESSES, left + (clock.monotonic() - when) / GUESS_S)

    def _log(self, request: Request, address: str, refused: Problem) -> None:
        if (left_out := self._lines.due(address)) is not None:
            where = (request.method, request.scope["path"][:200])
            who = {"client": address, "actor": "unknown", "left_out": left_out}
            log.warning("401 to %r %r from %s: %s", *where, address, refused.detail, extra=who)


def client(request: Request) -> str:
    """The address that the request comes from; of IPv6 the network of one customer, who has all of its addresses."""
    host = request.client.host if request.client is not None else "unknown"
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None and not address.is_loopback:
        return str(IPv6Network((int(address), 64), strict=False))
    return host


def _bounded(kept: OrderedDict[str, tuple[float, float]] | OrderedDict[tuple[str, str], None]) -> None:
    if len(kept) > MOST_ADDRESSES:
        kept.popitem(last=False)


def _secret(given: list[str]) -> str:
    """What stands behind `Bearer`; empty, which no token is, where the header is none of that kind."""
    scheme, _, secret = given[0].strip().partition(" ")
    return secret.strip() if len(given) == 1 and scheme.lower() == "bearer" else ""


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _unauthorized(detail: str, challenge: str) -> Problem:
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": challenge})


def _too_often() -> Problem:
    detail = f"Too many invalid tokens from this address. Wait, then send a valid one: one try in {GUESS_S:g} s."
    return Problem("too_many_requests", detail, headers={"Retry-After": f"{GUESS_S:g}"})
