"""On which port does a process listen where others have the wanted ones?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from orchestrix.bootstrap.listening_socket import listening, nearby
from orchestrix.errors import ConfigError


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def port_of(found: socket.socket) -> int:
    port: int = found.getsockname()[1]
    return port


def test_the_first_port_that_is_free_is_taken(taken: int) -> None:
    with listening("127.0.0.1", [taken, 0]) as second:
        free = port_of(second)
    with listening("127.0.0.1", [taken, free, 0]) as again:
        assert port_of(again) == free


async def test_it_listens_when_it_is_found(taken: int) -> None:
    with listening("127.0.0.1", nearby(taken)) as found:
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(found))
        writer.close()
        await writer.wait_closed()
        with pytest.raises(ConfigError, match="Address already in use"):
            listening("127.0.0.1", [port_of(found)])


@pytest.mark.parametrize(
    ("wanted", "ports"),
    [
        ([5673], [5673, *range(5674, 5773), 0]),
        ([6000, 8080], [6000, 8080, *range(8081, 8180), 0]),
        ([65534], [65534, 65535, 0]),
        ([65535], [65535, 0]),
        ([0], [0, *range(1, 100), 0]),
    ],
)
def test_what_lies_near_the_wanted_ports(wanted: list[int], ports: list[int]) -> None:
    assert list(nearby(*wanted)) == ports


def test_a_taken_port_is_said_once() -> None:
    with listening("127.0.0.1", [0]) as found:
        port = port_of(found)
        with pytest.raises(ConfigError) as refused:
            listening("127.0.0.1", [port])
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1:{port} (Address already in use): choose another --port or --host"
    )


@pytest.mark.parametrize("host", ["256.1.1.1.invalid", "x" * 300])
def test_an_unknown_host_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match="is not an address of this machine"):
        listening(host, nearby(8080))


def test_a_host_of_another_machine_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:8080 "):
        listening("192.0.2.1", nearby(8080))


def test_ipv6_works() -> None:
    with listening("::1", [0]) as found:
        assert found.family is socket.AF_INET6
