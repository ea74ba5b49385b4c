"""Callbacks: which URLs of nodes an executor is given for its reports, by where it and they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

MOST_CALLBACKS: Final = 10
"""Fewer than executors take."""


def listening_urls(own: Collection[tuple[str, int]], others: Collection[tuple[str, int]]) -> list[str]:
    """The URLs of nodes by the IP addresses and ports where they listen, those of this node first.

    Left out is what cannot be called from elsewhere as it is: all addresses at once, and link-local ones.
    """
    ordered = [*sorted(own), *sorted(set(others) - set(own))]
    return [_url(ip, port) for ip, port in ordered if _is_called(ip)]


def callbacks_for(address: str, urls: Sequence[str]) -> list[str]:
    """At most `MOST_CALLBACKS` of the URLs, in their order, for the executor at `address`.

    Loopback leads to a node only where the executor is on its machine: such URLs come first for an executor that is
    called by loopback, and are left out for any other one that can be given others.
    """
    here = [url for url in urls if _is_loopback(url)]
    elsewhere = [url for url in urls if not _is_loopback(url)]
    chosen: Iterable[str] = [*here, *elsewhere] if _is_loopback(address) else elsewhere or here
    return list(dict.fromkeys(chosen))[:MOST_CALLBACKS]


def _url(ip: str, port: int) -> str:
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"


def _is_called(ip: str) -> bool:
    found = ip_address(ip)
    return not (found.is_unspecified or (isinstance(found, IPv6Address) and found.is_link_local))


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
