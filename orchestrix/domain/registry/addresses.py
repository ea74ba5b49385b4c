"""Executor addresses: what an executor's address is, and which of them the cluster may call."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

SETTING: Final = "ORCHESTRIX_REGISTRY__ALLOW"
ADDRESS_MAX_CHARS: Final = 255
HOST_MAX_CHARS: Final = 253
PORT_MAX: Final = 65535
MOST_KEPT: Final = 4096
"""Addresses that are kept as they were read and judged: each comes with every heartbeat of its executor."""
_SHOWN_CHARS: Final = 100
_ADDRESS: Final = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+):([0-9]+)", re.ASCII | re.IGNORECASE)
_NAME: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_BRACKETED: Final = re.compile(r"\[([^\[\]]+)\](?::(.*))?")
_PORTS: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_FORM: Final = "write http://host:port or https://host:port and nothing more, e.g. http://10.0.0.7:9999"


@dataclass(frozen=True, slots=True)
class ExecutorAddress:
    """Where an executor listens, in its normal form: lower case, an IPv6 address in its shortest form, here without
    brackets."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@lru_cache(MOST_KEPT)
def parse_address(text: str) -> ExecutorAddress:
    """The address that the text is, up to 255 characters. Raises `ValueError` that says what to write.

    The message does not repeat the text, which could hold a password.
    """
    if len(text) > ADDRESS_MAX_CHARS:
        raise ValueError(f"an address has at most {ADDRESS_MAX_CHARS} characters: {_FORM}")
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"{_FORM}{_too_much(text)}")
    scheme, host, port = found[1].lower(), found[2].lower(), int(found[3])
    if found[3].startswith("0") or port > PORT_MAX:
        raise ValueError(f"the port must be a number from 1 to {PORT_MAX} without leading zeros")
    return ExecutorAddress(scheme, _ipv6(host[1:-1]) if host.startswith("[") else _host(host), port)


def _too_much(text: str) -> str:
    """What an address must not have, where that is what is wrong with it."""
    rest = text.partition("://")[2]
    if "@" in rest:
        return ": without a user"
    if rest.endswith("/") and "/" not in rest[:-1]:
        return ": without the slash at the end"
    return ": without a path, a query or a fragment" if any(one in rest for one in "/?#") else ""


def _ipv6(text: str) -> str:
    try:
        ip = IPv6Address(text)
    except ValueError:
        raise ValueError("what is in brackets must be an IPv6 address, e.g. http://[fd00::7]:9999") from None
    if ip.ipv4_mapped is not None:  # how it is written differs between versions of Python, and it is called as IPv4
        raise ValueError(f"write the IPv4 address itself: {ip.ipv4_mapped}")
    return ip.compressed


def _host(text: str) -> str:
    """A host name, or an IPv4 address: no other way to write one, for resolvers take many, such as 0x7f.1."""
    labels = text.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(text))
        except ValueError:
            raise ValueError("write an IPv4 address as four numbers from 0 to 255, e.g. 10.0.0.7") from None
    if len(text) > HOST_MAX_CHARS or not all(_NAME.fullmatch(label) for label in labels):
        raise ValueError(
            f"a host name has up to {HOST_MAX_CHARS} characters, in parts of 1 to 63 letters, digits, - or _ separated "
            "by dots, without a dot at the end"
        )
    return text


@dataclass(frozen=True, slots=True)
class _Ports:
    low: int = 1
    high: int = PORT_MAX

    def __contains__(self, port: int) -> bool:
        return self.low <= port <= self.high


@dataclass(frozen=True, slots=True)
class AllowList:
    """Which executors may be called: networks and host names, each with its ports. An empty one allows none."""

    networks: tuple[tuple[IpNetwork, _Ports], ...] = ()
    hosts: tuple[tuple[str, _Ports], ...] = ()
    """A name, or `.example` for all names below it."""

    @classmethod
    def parse(cls, text: str | Iterable[str]) -> AllowList:
        """The list that is written with commas, or as entries.

        An entry is a network (`10.0.0.0/8`, `fd00::/8`, a single address), a host name or `*.` and one, for all names
        below it; with `:port` or `:port-port` for these ports alone, an IPv6 network then in brackets
        (`[fd00::/8]:9999`). Raises `ValueError` that names the first wrong entry.
        """
        entries = text.split(",") if isinstance(text, str) else text
        networks, hosts = [], []
        for entry in filter(None, (one.strip() for one in entries)):
            try:
                what, ports = _entry(entry.lower())
            except ValueError as wrong:
                raise ValueError(f"{entry[:_SHOWN_CHARS]!r}: {wrong}") from None
            if isinstance(what, str):
                hosts.append((what, ports))
            else:
                networks.append((what, ports))
        return cls(tuple(networks), tuple(hosts))

    @classmethod
    def loopback(cls) -> AllowList:
        """What is on this machine alone."""
        return cls.parse("127.0.0.0/8,::1/128")

    def holds(self, address: ExecutorAddress, ips: Collection[IpAddress]) -> bool:
        """Whether the address's name, or each IP address of it, is allowed with its port."""
        return self._holds_name(address) or (bool(ips) and all(self._holds_ip(ip, address.port) for ip in ips))

    def _holds_name(self, address: ExecutorAddress) -> bool:
        return any(
            address.port in ports and (address.host == host or (host[0] == "." and address.host.endswith(host)))
            for host, ports in self.hosts
        )

    def _holds_ip(self, ip: IpAddress, port: int) -> bool:
        return any(port in ports and _called(ip) in network for network, ports in self.networks)


def _entry(text: str) -> tuple[IpNetwork | str, _Ports]:
    """The network or host of one entry, and its ports."""
    if found := _BRACKETED.fullmatch(text):
        return _network(found[1], IPv6Network), _ports(found[2])
    if text.count(":") > 1:
        return _network(text, IPv6Network), _Ports()
    what, colon, ports = text.partition(":")
    host, slash, _ = what.partition("/")
    if slash or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return _network(what, IPv4Network), _ports(ports if colon else None)
    star = what.startswith("*")
    if star and not what.startswith("*."):
        raise ValueError("a star must be followed by a dot and a name, e.g. *.svc.cluster.local")
    return (f".{_host(what[2:])}" if star else _host(what)), _ports(ports if colon else None)


def _network(text: str, kind: type[IPv4Network | IPv6Network]) -> IpNetwork:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        network = None
    if not isinstance(network, kind):
        example = "fd00::/8 or, with ports, [fd00::/8]:9999" if kind is IPv6Network else "10.0.0.0/8 or 10.0.0.0/8:9999"
        raise ValueError(f"this is no network: write one such as {example}")
    if "/" in text and ip_address(text.partition("/")[0]) != network.network_address:
        raise ValueError(f"the network begins at another address: write {network}")
    return network


def _ports(text: str | None) -> _Ports:
    if text is None:
        return _Ports()
    found = _PORTS.fullmatch(text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high <= PORT_MAX:
        raise ValueError(f"write a port from 1 to {PORT_MAX} or a range such as 9000-9099")
    return _Ports(low, high)


_NEVER: Final = tuple(
    (ip_network(network), what)
    for network, what in (
        ("169.254.169.254/32", "a cloud's metadata service"),
        ("100.100.100.200/32", "a cloud's metadata service"),  # Alibaba
        ("168.63.129.16/32", "a cloud's metadata service"),  # Azure
        ("192.0.0.192/32", "a cloud's metadata service"),  # Oracle
        ("fd00:ec2::/32", "a cloud's metadata service"),  # AWS: ::254, and its other services for instances
        ("fd20:ce::254/128", "a cloud's metadata service"),  # Google
        ("169.254.0.0/16", "link-local"),
        ("fe80::/10", "link-local"),
        ("224.0.0.0/4", "multicast"),
        ("ff00::/8", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("0.0.0.0/8", "unspecified"),
        ("::/128", "unspecified"),
    )
)
_METADATA_HOSTS: Final = frozenset(
    [
        "metadata",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.tencentyun.com",
        "instance-data",
        "instance-data.ec2.internal",
    ]
)
_EMBEDDING: Final = tuple(
    (IPv6Network(network), shift)
    for network, shift in (
        ("::/96", 0),  # IPv4-compatible, RFC 4291
        ("::ffff:0:0/96", 0),  # IPv4-mapped, RFC 4291
        ("::ffff:0:0:0/96", 0),  # IPv4-translated, RFC 2765
        ("64:ff9b::/96", 0),  # NAT64, RFC 6052
        ("64:ff9b:1::/48", 0),  # NAT64 for local use, RFC 8215, with prefixes of 96 bits
        ("2002::/16", 80),  # 6to4, RFC 3056
    )
)
"""IPv6 networks whose addresses stand for IPv4 addresses, and how many bits follow these."""
_NO_IPV4: Final = (IPv6Address("::"), IPv6Address("::1"))


def judge(
    address: ExecutorAddress,
    ips: Collection[IpAddress],
    allow: AllowList,
    listening: Collection[tuple[IpAddress | None, int]],
) -> str | None:
    """Why the address must not be called; None if it may be.

    `ips` are all that its host was resolved to: call one of them and do not resolve it again. `listening` is where
    living nodes listen, with None (or an unspecified address) for every interface of a node, which then means that
    port on all hosts. Whatever is allowed, metadata services, nodes and what can be no single host are not called.
    """
    if not ips:
        return f"{_shown(address)} has no IP address, so {SETTING} cannot be checked"
    if address.host in _METADATA_HOSTS:
        return _refused(address, "a cloud's metadata service")
    for ip in ips:
        if (what := _never(ip)) is not None:
            return _refused(address, what, ip)
        if _is_node(ip, address.port, listening):
            return _refused(address, "a node of the cluster", ip)
    if allow.holds(address, ips):
        return None
    if not (allow.networks or allow.hosts):
        those = f"the networks or names of your executors, as {_suggested(address, ips)}"
        return f"{_shown(address)} is not called: {SETTING} is not set, so no executor is. Set it to {those}"
    return f"{_shown(address)} is not in {SETTING}: add {_suggested(address, ips)} if it is to be called"


def _shown(address: ExecutorAddress) -> str:
    return str(address)[:_SHOWN_CHARS]


def _refused(address: ExecutorAddress, what: str, ip: IpAddress | None = None) -> str:
    where = f" ({ip})" if ip is not None and str(ip) != address.host else ""
    return f"{_shown(address)}{where} is {what} and never called, whatever {SETTING} holds"


def _suggested(address: ExecutorAddress, ips: Iterable[IpAddress]) -> str:
    """An entry that allows it: its network of one address, or its name."""
    names = {str(ip) for ip in ips}
    if address.host not in names:
        return f"its name, {address.host[:_SHOWN_CHARS]}:{address.port}, or its networks"
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"


@lru_cache(MOST_KEPT)
def _never(ip: IpAddress) -> str | None:
    """What the address is, where that can be no executor."""
    return next((what for one in _meanings(ip) for network, what in _NEVER if one in network), None)


def _is_node(ip: IpAddress, port: int, listening: Iterable[tuple[IpAddress | None, int]]) -> bool:
    meant = set(_meanings(ip))
    return any(
        port == taken and (node is None or node.is_unspecified or not meant.isdisjoint(_meanings(node)))
        for node, taken in listening
    )


def _meanings(ip: IpAddress) -> Iterator[IpAddress]:
    """The address, without the name of an interface, and the IPv4 address for which it stands."""
    plain = IPv6Address(int(ip)) if isinstance(ip, IPv6Address) else ip
    yield plain
    if isinstance(plain, IPv6Address) and plain not in _NO_IPV4:
        yield from (IPv4Address(int(ip) >> shift & 0xFFFF_FFFF) for network, shift in _EMBEDDING if plain in network)


def _called(ip: IpAddress) -> IpAddress:
    """The address to which a connection goes: a mapped one is IPv4 to the operating system."""
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip
