"""Do all nodes know where this one listens, as long as it does?"""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from orchestrix.domain.registry.addresses import AllowList, parse_address
from orchestrix.errors import Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener
from orchestrix.registry import node_listeners
from orchestrix.registry.address_check import AddressCheck, AddressNotAllowed
from orchestrix.registry.node_listeners import NODE_SEEN_S, NodeListeners
from tests.servers import templates
from tests.support import eventually


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    made = Database(templates.upgraded(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"))
    yield made
    await made.close()


async def noted(database: Database) -> set[Listener]:
    async with database.read() as connection:
        return await listeners.living(connection, connection.now() - timedelta(seconds=NODE_SEEN_S))


async def until_noted(database: Database, *wanted: Listener) -> None:
    async def there() -> bool:
        return await noted(database) == set(wanted)

    await eventually(there, deadline=5, message=f"{wanted} are noted")


async def found(database: Database, host: str) -> set[Listener]:
    """Where a node that listens on port 8080 of the host knows that it does when it has started."""
    node = NodeListeners(database, "a", host, 8080)
    await node.start()
    own = set(node.own())
    await node.stop()
    return own


async def test_where_a_node_listens_is_noted_and_forgotten_when_it_stops(database: Database) -> None:
    node, other = (NodeListeners(database, name, ip, 8080) for name, ip in (("a", "10.0.0.1"), ("b", "10.0.0.2")))
    assert set(node.own()) == {("10.0.0.1", 8080)}
    await node.start()
    await other.start()
    await until_noted(database, ("10.0.0.1", 8080), ("10.0.0.2", 8080))
    await node.stop()
    assert await noted(database) == {("10.0.0.2", 8080)}
    await other.stop()


async def test_it_is_noted_again_and_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_listeners, "REPEAT_S", 0.05)
    node = NodeListeners(database, "a", "10.0.0.1", 8080)
    await node.start()
    await until_noted(database, ("10.0.0.1", 8080))
    async with database.begin() as tx:
        await listeners.forget(tx, "a")
    await until_noted(database, ("10.0.0.1", 8080))
    await node.stop()


async def test_a_node_learns_where_it_was_called(database: Database) -> None:
    assert set(NodeListeners(database, "a", "10.0.0.1", 0).own()) == set(), "an ASGI server has chosen where it listens"
    node = NodeListeners(database, "a", "10.0.0.1", 8080)
    await node.start()
    await until_noted(database, ("10.0.0.1", 8080))
    node.called_at("10.0.0.3", 9000)
    node.called_at("10.0.0.3", 9000)
    node.called_at("fe80::1%eth0", 9000)
    node.called_at("/run/node.sock", 0)
    expected = ("10.0.0.1", 8080), ("10.0.0.3", 9000), ("fe80::1", 9000)
    assert set(node.own()) == set(expected)
    await until_noted(database, *expected)
    await node.stop()
    assert await noted(database) == set()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_one_that_listens_everywhere_has_all_addresses_of_its_machine(host: str, database: Database) -> None:
    own = await found(database, host)
    assert {("127.0.0.1", 8080), ("::1", 8080)} <= own
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        try:
            ours.connect(("192.0.2.1", 9))  # sends nothing, and shows the address of the way out
        except OSError:
            return
        assert (ours.getsockname()[0], 8080) in own


def interfaces(monkeypatch: pytest.MonkeyPatch, *ips: str) -> None:
    """The machine has these addresses alone, and its name has none."""
    trie = "".join(f"  |-- {ip}\n     /32 host LOCAL\n" for ip in ips)
    files = {"/proc/net/fib_trie": trie, "/proc/net/if_inet6": ""}
    monkeypatch.setattr(Path, "read_text", lambda path, *_: files[str(path)])
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.1")


async def test_the_addresses_of_the_interfaces_are_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/net/fib_trie": "Main:\n  |-- 10.1.2.3\n     /32 host LOCAL\n  |-- 10.1.2.255\n     /32 link BROADCAST\n",
        "/proc/net/if_inet6": "fd000000000000000000000000000009 02 40 00 80     eth0\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path, *_: files[str(path)])
    own = {ip for ip, _ in await found(database, "0.0.0.0")}
    assert {"10.1.2.3", "fd00::9"} <= own
    assert "10.1.2.255" not in own


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_a_node_that_listens_everywhere_takes_its_port_on_no_other_machine(
    host: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces(monkeypatch, "10.1.2.3")
    node = NodeListeners(database, "a", host, 8080)
    await node.start()
    await until_noted(database, ("127.0.0.1", 8080), ("::1", 8080), ("10.1.2.3", 8080))
    check = AddressCheck(database, AllowList.parse("10.0.0.0/8"), node.own, 90.0)
    await check.judged(parse_address("http://10.1.2.4:8080"))
    with pytest.raises(AddressNotAllowed, match="a node of the cluster"):
        await check.judged(parse_address("http://10.1.2.3:8080"))
    await node.stop()


async def test_one_that_was_called_everywhere_has_its_interfaces(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces(monkeypatch, "10.1.2.3")
    node = NodeListeners(database, "a", "127.0.0.1", 0)
    await node.start()
    node.called_at("0.0.0.0", 9000)
    await until_noted(database, ("127.0.0.1", 9000), ("::1", 9000), ("10.1.2.3", 9000))
    await node.stop()


async def test_interfaces_that_appear_later_are_noted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_listeners, "REPEAT_S", 0.05)
    interfaces(monkeypatch, "10.1.2.3")
    node = NodeListeners(database, "a", "0.0.0.0", 8080)
    await node.start()
    interfaces(monkeypatch, "10.1.2.3", "10.9.9.9")
    await until_noted(database, *((ip, 8080) for ip in ("127.0.0.1", "::1", "10.1.2.3", "10.9.9.9")))
    await node.stop()


async def test_a_name_service_that_hangs_blocks_neither_the_making_nor_the_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_listeners, "LOOKUP_TIMEOUT_S", 0.01)
    interfaces(monkeypatch, "10.1.2.3")
    monkeypatch.setattr(socket, "gethostname", lambda: "node-1")
    answers, blocked = threading.Event(), []

    def hangs(*_: Any, **__: Any) -> list[Any]:
        blocked.append(threading.current_thread())
        answers.wait(5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    node = NodeListeners(database, "a", "0.0.0.0", 8080)
    assert blocked == []
    await node.start()
    assert ("10.1.2.3", 8080) in node.own()
    assert blocked
    assert threading.main_thread() not in blocked
    answers.set()
    await node.stop()


async def test_a_system_without_such_files_and_a_host_that_is_unknown_are_no_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert ("127.0.0.1", 8080) in await found(database, "0.0.0.0")

    def unknown(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert await found(database, "nowhere.invalid") == set()
    assert ("0.0.0.0", 8080) in await found(database, "0.0.0.0"), "its addresses are unknown, so it may be anywhere"


async def test_a_name_is_noted_with_its_addresses(database: Database) -> None:
    own = await found(database, "localhost")
    assert own
    assert all(ip_address(ip).is_loopback for ip, _ in own)


async def test_a_stop_without_the_database_ends(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeListeners(database, "a", "10.0.0.1", 8080)
    await node.start()
    await until_noted(database, ("10.0.0.1", 8080))

    async def refused(*_: object) -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(listeners, "forget", refused)
    await node.stop()
    assert await noted(database) == {("10.0.0.1", 8080)}, "it is forgotten by itself"
