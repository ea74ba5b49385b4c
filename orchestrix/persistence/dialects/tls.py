"""TLS: the parameters of a database URL about it, the same for all drivers."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from sqlalchemy import URL

from orchestrix.errors import ConfigError, Unavailable

log = logging.getLogger("orchestrix.database")

_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_MEANT: Final[Mapping[str, str]] = {
    **{mode: mode for mode in _MODES},
    **dict.fromkeys(("true", "1", "yes", "on", "required"), "require"),
    **dict.fromkeys(("false", "0", "no", "off", "disabled"), "disable"),
    "preferred": "prefer",
    "verify_ca": "verify-ca",
    "verify_identity": "verify-full",
}
_MODE: Final = ("sslmode", "ssl-mode", "ssl_mode", "ssl")
_CA, _CERT, _KEY = ("sslrootcert", "ssl_ca"), ("sslcert", "ssl_cert"), ("sslkey", "ssl_key")
PARAMETERS: Final = frozenset((*_MODE, *_CA, *_CERT, *_KEY))


@dataclass(frozen=True, slots=True)
class Tls:
    """What is required: `mode` is one of libpq's, None where it is not given; `context` is for the modes that need
    one.
    """

    mode: str | None
    context: ssl.SSLContext | None
    host: str

    @property
    def needed(self) -> bool:
        """Whether a connection without TLS is refused."""
        return self.mode in ("require", "verify-ca", "verify-full")

    def found(self, encrypted: bool) -> None:
        """Says once that a connection is in plain text though TLS was to be tried.

        Raises `Unavailable` if it is needed.
        """
        if encrypted or self.mode == "disable":
            return
        if self.needed:
            raise Unavailable(f"the database at {self.host} does not offer TLS, but the URL requires it ({self.mode})")
        if not _is_here(self.host) and self not in _logged:
            _logged.add(self)
            log.warning(
                "the connection to the database at %s is not encrypted: write sslmode=require in its URL, "
                "or sslmode=disable if that is intended",
                self.host,
            )


_logged: set[Tls] = set()


def wanted(url: URL) -> Tls:
    """What the URL says. Raises `ConfigError`."""
    query = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    ca, cert, key = (_first(query, names) for names in (_CA, _CERT, _KEY))
    values = {_mode(name, query[name]) for name in _MODE if name in query}
    if len(values) > 1:
        raise ConfigError(f"the database URL has contradicting TLS parameters: {' and '.join(sorted(values))}")
    mode = values.pop() if values else "verify-full" if ca else "require" if cert else None
    verified = mode in ("verify-ca", "verify-full")
    context = _context(ca, cert, key, mode) if verified or ((ca or cert) and mode != "disable") else None
    return Tls(mode, context, url.host or "localhost")


def unverified() -> ssl.SSLContext:
    """Encrypts without verifying the peer: what `require` means."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def without(url: URL, known: Collection[str]) -> URL:
    """The URL without what `wanted` reads. Raises `ConfigError` for a parameter that is none of these or of `known`."""
    if unknown := sorted(set(url.query) - PARAMETERS - set(known)):
        allowed = ", ".join(sorted({*known, "sslmode", "sslrootcert", "sslcert", "sslkey"}))
        raise ConfigError(f"the database URL has the unknown parameter {unknown[0]!r}; known are {allowed}")
    return url.difference_update_query([name for name in url.query if name in PARAMETERS])


def _mode(name: str, value: str) -> str:
    mode = _MEANT.get(value.lower())
    if mode is None:
        raise ConfigError(f"the database URL has {name}={value[:40]}: write one of {', '.join(_MODES)}")
    return mode


def _context(ca: str | None, cert: str | None, key: str | None, mode: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        which = "sslrootcert" if cert is None else "sslrootcert, sslcert or sslkey"
        raise ConfigError(f"a certificate of the database URL ({which}) cannot be read: {error}") from error
    context.check_hostname = mode == "verify-full"
    if mode not in ("verify-ca", "verify-full"):
        context.verify_mode = ssl.CERT_NONE
    return context


def _first(query: Mapping[str, str], names: Collection[str]) -> str | None:
    return next((query[name] for name in names if name in query), None)


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or host.startswith("/") or ip_address(host).is_loopback
    except ValueError:
        return False
