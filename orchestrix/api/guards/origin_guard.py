"""Origin guard: keeps other web sites from using an API through a user's browser.

A browser sends a request to whatever a page names, `127.0.0.1` too. Two rules prevent that. While the API needs
no token, `Host` has to be a name of loopback or one that the operator allows: a page whose own name was
pointed to loopback (DNS rebinding) sends that name. And, always, what changes something has to come from the API's own
origin, as `Sec-Fetch-Site` and `Origin` say; clients that are no browsers send neither.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from orchestrix.api.problems import Problem, is_stream

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OWN: Final = frozenset({"same-origin", "none"})
"""What `Sec-Fetch-Site` says of the API's own pages, and of what a person typed."""
MOST_HOSTS: Final = 64
"""Hosts that are kept as they were read: clients send one and the same all the time."""
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class OriginGuard:
    """Refuses requests that other sites have made, but for those of `origins`. Without `check_host` each `Host` is
    right; `allowed` are those that are not loopback.
    """

    check_host: bool = False
    allowed: Collection[str] = ()
    origins: Collection[str] = ()

    def admit(self, method: str, path: str, headers: Headers) -> None:
        """Raises `Problem` 421 (RFC 9110, 15.5.20) for another host and 403 for another origin."""
        if self.check_host:
            self._admit_host(headers.getlist("host"))
        if method not in SAFE or is_stream(path) or "upgrade" in headers:
            self._admit_origin(headers)

    def _admit_origin(self, headers: Headers) -> None:
        site, origins = headers.get("sec-fetch-site"), headers.getlist("origin")
        if origins and all(one.strip().lower() in self.origins for one in origins):
            return
        foreign = site is not None and site.strip().lower() not in OWN
        if foreign or not all(_is_same(origin, headers.get("host", "")) for origin in origins):
            text = f"Origin {origins[0][:100]!r}" if origins else f"Sec-Fetch-Site {(site or '')[:100]!r}"
            raise Problem(
                "foreign_origin",
                f"{text} is not that of this API, and other sites' pages may change nothing here. Call it from its own "
                "pages, or from a program, which sends no Origin; or name the site in ORCHESTRIX_HTTP__CORS_ORIGINS.",
            )

    def _admit_host(self, given: Sequence[str]) -> None:
        text = given[0] if len(given) == 1 else ""
        name, port = _place(text)
        allowed = {_place(one) for one in self.allowed} - {("", "")}
        if not (_is_loopback(name) or not allowed.isdisjoint({(name, ""), (name, port)})):
            raise Problem(
                "misdirected",
                f"Host is {text[:100]!r}. Without tokens this API answers by names of loopback alone: use 127.0.0.1 or "
                "localhost, or set ORCHESTRIX_API__TOKENS, or name the host in ORCHESTRIX_HTTP__ALLOWED_HOSTS.",
            )


def _is_same(origin: str, host: str) -> bool:
    """Whether `origin` names `host`. The scheme does not count: a proxy may have taken the TLS away."""
    try:
        parts = urlsplit(origin.strip())
        port = _PORTS.get(parts.scheme)
        name, given = _parts(host)
        return port is not None and (parts.hostname, parts.port or port) == (name, int(given or port))
    except ValueError:
        return False


def _parts(host: str) -> tuple[str, str]:
    """The name, in lower case and without brackets, and the port of a `Host`; empty where it is none."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        port = str(parts.port or "")
    except ValueError:
        return "", ""
    plain = not (parts.path or parts.query or parts.fragment or parts.username is not None)
    return ((parts.hostname or "").removesuffix("."), port) if plain else ("", "")


@lru_cache(MOST_HOSTS)
def _place(host: str) -> tuple[str, str]:
    """`_parts` with an address in its canonical form: one of IPv6 can be written in many ways (RFC 5952)."""
    name, port = _parts(host)
    try:
        return str(ip_address(name)), port
    except ValueError:
        return name, port


@lru_cache(MOST_HOSTS)
def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, 6.3: no name server answers for it
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
