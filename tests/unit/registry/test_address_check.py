"""Is an address registered only where the name service, the allow list and the nodes' own addresses let it be?"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.domain.registry.addresses import AllowList, parse_address
from orchestrix.errors import Unavailable
from orchestrix.lifecycle import DaemonThreadPool
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener
from orchestrix.registry import address_check
from orchestrix.registry.address_check import ADMISSION_FRESH_S, NODES_FRESH_S, AddressCheck, AddressNotAllowed
from orchestrix.registry.host_lookups import LOOKUP_THREADS
from orchestrix.registry.node_listeners import NODE_SEEN_S
from tests.fakes.time import Shifted
from tests.servers import templates
from tests.support import eventually

DEAD_S = 90.0
ALLOWED = "10.0.0.0/8,fd00::/8,127.0.0.0/8,*.example.com"


@pytest.fixture
def time() -> Iterator[Shifted]:
    shifted = Shifted()
    with clock.use(shifted):
        yield shifted


@pytest.fixture
async def database(time: Shifted, tmp_path: Path) -> AsyncIterator[Database]:
    made = Database(templates.upgraded(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"))
    yield made
    await made.close()


class Names:
    """A name service."""

    def __init__(self) -> None:
        self.answer: list[str] | Exception = ["10.0.0.1"]
        self.asked: list[str] = []
        self.answers = threading.Event()
        """It hangs while this is not set."""
        self.answers.set()

    def getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        self.answers.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [(socket.AF_INET6 if ":" in ip else socket.AF_INET, 1, 6, "", (ip, 0)) for ip in self.answer]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Names]:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.answers.set()


def check_of(database: Database, own: Collection[Listener] = (), allowed: str = ALLOWED) -> AddressCheck:
    return AddressCheck(database, AllowList.parse(allowed), lambda: own, DEAD_S)


async def refusal(check: AddressCheck, address: str) -> str:
    with pytest.raises(AddressNotAllowed) as refused:
        await check.admit(parse_address(address))
    return str(refused.value)


async def test_a_number_is_not_looked_up(database: Database, names: Names) -> None:
    check = check_of(database)
    assert await check.judged(parse_address("http://10.0.0.9:80")) == [ip_address("10.0.0.9")]
    assert await check.judged(parse_address("http://[fd00::9]:80")) == [ip_address("fd00::9")]
    assert names.asked == []


async def test_all_addresses_of_a_name_are_judged_and_returned(database: Database, names: Names) -> None:
    names.answer = ["fd00::1", "10.0.0.2", "10.0.0.1", "10.0.0.1"]
    assert [str(ip) for ip in await check_of(database).judged(parse_address("http://shop:80"))] == [
        "10.0.0.1",
        "10.0.0.2",
        "fd00::1",
    ]
    names.answer = ["10.0.0.1", "192.0.2.1"]
    assert "ORCHESTRIX_REGISTRY__ALLOW" in await refusal(check_of(database), "http://shop:80")


@pytest.mark.parametrize(
    ("ip", "what"),
    [
        ("169.254.169.254", "metadata"),
        ("fe80::1%eth0", "link-local"),
        ("0.0.0.0", "unspecified"),
        ("::ffff:169.254.169.254", "metadata"),
    ],
)
async def test_an_allowed_name_at_a_forbidden_address_is_refused(
    ip: str, what: str, database: Database, names: Names
) -> None:
    names.answer = ["10.0.0.1", ip]
    assert what in await refusal(check_of(database), "http://shop.example.com:80")


async def test_a_name_service_that_does_not_answer_in_time_is_away(
    database: Database, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_check, "RESOLVE_TIMEOUT_S", 0.05)
    names.answers.clear()
    with pytest.raises(Unavailable, match=r"shop could not be resolved within 0\.05 s"):
        await check_of(database).admit(parse_address("http://shop:80"))


async def test_the_names_of_a_list_are_looked_up_several_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, all_asked, counting = 0, 0, threading.Event(), threading.Lock()

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        if most == LOOKUP_THREADS:
            all_asked.set()
        assert all_asked.wait(30)
        with counting:
            running -= 1
        return [(socket.AF_INET, 1, 6, "", ("192.0.2.1" if host in ("shop-40", "shop-90") else "10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    check = check_of(database)
    assert await check.refused([]) is None
    assert await check.refused([parse_address(f"http://shop-{place}:80") for place in range(40)]) is None
    assert most == LOOKUP_THREADS
    found = await check.refused([parse_address(f"http://shop-{place}:80") for place in range(100)])
    assert found is not None
    assert (found[0], "ORCHESTRIX_REGISTRY__ALLOW" in str(found[1])) == (40, True)


async def test_a_refusal_is_told_rather_than_what_may_pass(database: Database, names: Names) -> None:
    names.answer = socket.gaierror(socket.EAI_AGAIN, "again")
    addresses = [parse_address(one) for one in ("http://shop:80", "http://192.0.2.1:80")]
    found = await check_of(database).refused(addresses)
    assert found is not None
    assert found[0] == 1
    with pytest.raises(Unavailable, match="shop cannot be resolved now"):
        await check_of(database).refused(addresses[:1])


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_AGAIN, "again"),
        socket.gaierror(socket.EAI_FAIL, "failed"),
        OSError(24, "too many open files"),
    ],
)
async def test_errors_that_may_pass_are_no_refusal(error: OSError, database: Database, names: Names) -> None:
    check = check_of(database)
    names.answer = error
    with pytest.raises(Unavailable, match="shop cannot be resolved now"):
        await check.admit(parse_address("http://shop:80"))
    names.answer = ["10.0.0.1"]
    await check.admit(parse_address("http://shop:80"))


@pytest.mark.parametrize(
    "error", [socket.gaierror(socket.EAI_NONAME, "unknown"), UnicodeError("label empty or too long")]
)
async def test_what_the_name_service_does_not_know_is_refused(
    error: Exception, database: Database, names: Names
) -> None:
    names.answer = error
    assert (await refusal(check_of(database), "http://shop:80")).startswith("shop ")


async def test_who_is_allowed_is_not_judged_again_for_a_while(database: Database, names: Names, time: Shifted) -> None:
    check = check_of(database)
    for _ in range(3):
        await check.admit(parse_address("http://shop:80"))
    assert names.asked == ["shop"]
    await check.admit(parse_address("http://shop:81"))
    assert names.asked == ["shop"] * 2, "another port is another address"
    names.answer = ["192.0.2.1"]
    time.advance(ADMISSION_FRESH_S - 1)
    await check.admit(parse_address("http://shop:80"))
    time.advance(2)
    await refusal(check, "http://shop:80")


async def test_who_is_refused_is_judged_again_at_once(database: Database, names: Names) -> None:
    check = check_of(database)
    names.answer = ["192.0.2.1"]
    for _ in range(2):
        await refusal(check, "http://shop:80")
    names.answer = ["10.0.0.1"]
    await check.admit(parse_address("http://shop:80"))
    assert names.asked == ["shop"] * 3


async def test_a_call_is_judged_each_time(database: Database, names: Names) -> None:
    check = check_of(database)
    for _ in range(2):
        await check.judged(parse_address("http://shop:80"))
    assert names.asked == ["shop"] * 2


async def test_only_so_many_are_kept(database: Database, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_check, "MOST_ADMISSIONS", 2)
    check = check_of(database)
    for host in ("a", "b", "c", "b", "c", "a"):
        await check.admit(parse_address(f"http://{host}:80"))
    assert names.asked == ["a", "b", "c", "a"]


async def test_this_nodes_own_addresses_are_refused(database: Database, names: Names) -> None:
    own: set[Listener] = set()
    check = check_of(database, own)
    await check.judged(parse_address("http://127.0.0.1:8080"))
    own |= {("127.0.0.1", 8080), ("::1", 8080)}
    assert "a node of the cluster" in await refusal(check, "http://127.0.0.1:8080")
    for ip in ("127.0.0.1", "::ffff:127.0.0.1"):
        names.answer = ["10.0.0.1", ip]
        assert "a node of the cluster" in await refusal(check, "http://shop.example.com:8080")
    await check.admit(parse_address("http://127.0.0.1:8081"))


async def test_those_of_other_living_nodes_are_refused(database: Database, time: Shifted) -> None:
    check = check_of(database)
    await check.judged(parse_address("http://10.0.0.7:8080"))
    async with database.begin() as tx:
        await listeners.record(tx, "other", [("10.0.0.7", 8080)], tx.now())
    await check.judged(parse_address("http://10.0.0.7:8080"))
    time.advance(NODES_FRESH_S + 1)
    assert "a node of the cluster" in await refusal(check, "http://10.0.0.7:8080")
    time.advance(NODE_SEEN_S)
    await check.admit(parse_address("http://10.0.0.7:8080"))


async def test_without_the_database_nobody_is_admitted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    check = check_of(database)

    async def refused(*_: object) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as away:
        away.setattr(listeners, "living", refused)
        with pytest.raises(Unavailable):
            await check.admit(parse_address("http://10.0.0.7:8080"))
    await check.admit(parse_address("http://10.0.0.7:8080"))


BEAT_S = 30.0
AGAIN = socket.gaierror(socket.EAI_AGAIN, "again")
SHOP = parse_address("http://shop:80")


async def test_not_every_heartbeat_looks_its_name_up(database: Database, names: Names, time: Shifted) -> None:
    check = check_of(database)
    for _ in range(10):
        await check.admit(SHOP)
        time.advance(BEAT_S)
    assert len(names.asked) == 5


async def test_who_was_admitted_stays_so_through_an_outage_of_the_name_service(
    database: Database, names: Names, time: Shifted
) -> None:
    check = check_of(database)
    await check.admit(SHOP)
    time.advance(2 * DEAD_S - 1)
    names.answer = AGAIN
    for _ in range(10):  # as long as it sends heartbeats, however long the outage is
        await check.admit(SHOP)
        time.advance(BEAT_S)
    with pytest.raises(Unavailable):
        await check.admit(parse_address("http://shop:81"))
    names.answer = ["192.0.2.1"]
    await refusal(check, "http://shop:80")


async def test_who_was_silent_for_longer_must_be_resolved(database: Database, names: Names, time: Shifted) -> None:
    check = check_of(database)
    await check.admit(SHOP)
    time.advance(2 * DEAD_S + 1)
    names.answer = AGAIN
    with pytest.raises(Unavailable):
        await check.admit(SHOP)


async def test_a_name_service_that_hangs_keeps_no_admitted_heartbeat_waiting(
    database: Database, names: Names, time: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_check, "RENEW_TIMEOUT_S", 0.01)
    monkeypatch.setattr(address_check, "RESOLVE_TIMEOUT_S", 60.0)
    check = check_of(database)
    await check.admit(SHOP)
    names.answers.clear()
    time.advance(DEAD_S)
    async with asyncio.timeout(5):
        await check.admit(SHOP)
    assert names.asked == ["shop"] * 2, "the second one hangs"


async def test_a_name_that_is_gone_is_refused_after_two_dead_times(
    database: Database, names: Names, time: Shifted
) -> None:
    check = check_of(database)
    await check.admit(SHOP)
    names.answer = socket.gaierror(socket.EAI_NONAME, "unknown")
    for _ in range(2):
        time.advance(DEAD_S - 1)
        await check.admit(SHOP)
    time.advance(3)
    assert "has no address" in await refusal(check, "http://shop:80")


async def test_a_refusal_ends_the_admission(database: Database, names: Names, time: Shifted) -> None:
    check = check_of(database)
    await check.admit(SHOP)
    time.advance(ADMISSION_FRESH_S + 1)
    names.answer = ["169.254.169.254"]
    await refusal(check, "http://shop:80")
    names.answer = AGAIN
    with pytest.raises(Unavailable):
        await check.admit(SHOP)


async def test_one_look_up_of_a_host_serves_all_who_wait_for_it(database: Database, names: Names) -> None:
    check = check_of(database)
    names.answers.clear()
    waiting = [asyncio.create_task(check.judged(parse_address(f"http://shop:{port}"))) for port in range(80, 90)]
    await eventually(lambda: bool(names.asked), deadline=5, message="the host is looked up")
    names.answers.set()
    assert await asyncio.gather(*waiting) == [[ip_address("10.0.0.1")]] * 10
    assert names.asked == ["shop"]
    await check.judged(SHOP)
    assert names.asked == ["shop"] * 2, "later it is looked up again"


async def test_look_ups_that_hang_leave_the_threads_of_the_loop_alone(database: Database, names: Names) -> None:
    asyncio.get_running_loop().set_default_executor(DaemonThreadPool(1))
    check = check_of(database)
    names.answers.clear()
    waiting = [asyncio.create_task(check.judged(parse_address(f"http://shop-{n}:80"))) for n in range(9)]
    await eventually(lambda: len(names.asked) == LOOKUP_THREADS, deadline=5, message="as many as may are looked up")
    async with asyncio.timeout(5):
        await asyncio.to_thread(lambda: None)
    names.answers.set()
    await asyncio.gather(*waiting)
    assert len(names.asked) == 9
