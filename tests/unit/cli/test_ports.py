"""Does `dev` find a port that is free?"""

from __future__ import annotations

import socket

import pytest

from app.cli.ports import free_port, is_free
from app.errors import ConfigError


def test_a_free_port_is_taken_as_wanted_and_a_taken_one_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        assert free_port("127.0.0.1", port) not in (0, port)
        second = free_port("127.0.0.1", port)
        assert free_port("127.0.0.1", port, second) == second
    assert free_port("127.0.0.1", port) == port


def test_the_last_port_has_no_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.ports.is_free", lambda host, port: False)
    assert free_port("127.0.0.1", 65535) == 0, "0 lets the system choose"


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ConfigError, match="no address"):
        is_free("256.1.1.1.invalid", 80)


def test_ipv6_works() -> None:
    assert is_free("::1", free_port("::1", 50000))
