"""Which arguments does an executor take, and when are its heartbeats?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest

from orchestrix import Executor, clock
from orchestrix.testing.simulation.virtual_time import START_S, VirtualClock, VirtualLoop, elapse
from orchestrix.worker.executor.admins import AdminFailure, AdminResult, Admins
from orchestrix.worker.executor.arguments import checked_listen
from orchestrix.worker.executor.executor import REGISTER
from orchestrix.worker.executor.urls import admin_urls, executor_address

A, B = "http://a:8080", "http://b:8080"


def made(app: str = "shop", address: str = "http://10.0.0.7:9999", admins: Any = A, **more: Any) -> Executor:
    return Executor(app, address, admins, **more)


@pytest.mark.parametrize("address", ["http://10.0.0.7:9999", "https://shop-1.example:1", "http://[fd00::7]:65535"])
def test_an_address_is_kept_as_it_is(address: str) -> None:
    assert executor_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "", "10.0.0.7:9999", "http://10.0.0.7", "http://10.0.0.7:0", "http://10.0.0.7:65536", "http://10.0.0.7:9999/",
        "http://10.0.0.7:9999/run", "http://10.0.0.7:9999?a=1", "http://joe:pw@10.0.0.7:9999", "ftp://10.0.0.7:9999",
        "http://:9999", "http://fd00::7:9999", "http://10.0.0.7:9999\n", " http://10.0.0.7:9999", "http://é:9999",
        "http://10.0.0.7:٣",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"^address .*write http://host:port"):
        made(address=address)


@pytest.mark.req("S2-65")
@pytest.mark.parametrize(
    ("admins", "urls"),
    [
        (f"{A},{B}", (A, B)),
        (f" {A}/ , {B},", (A, B)),
        (f"{A},{B},{A}/", (A, B)),
        ([A, B], (A, B)),
        ("https://orchestrix.example/api-of/us/", ("https://orchestrix.example/api-of/us",)),
        ("http://[::1]:8080", ("http://[::1]:8080",)),
    ],
)
def test_several_admins_are_a_list_or_a_text_with_commas(admins: Any, urls: tuple[str, ...]) -> None:
    assert admin_urls(admins) == urls


@pytest.mark.parametrize("admins", ["", " , ", []])
def test_at_least_one_admin_is_needed(admins: Any) -> None:
    with pytest.raises(ValueError, match=r"^admins: name at least one"):
        made(admins=admins)


@pytest.mark.parametrize(
    "admins", ["a:8080", "http://", "http://a:99999", "http://a:8080?x=1", "http://a:8080#x", f"{A};{B}", "http://a b"]
)
def test_what_is_no_url_of_an_admin_is_refused(admins: str) -> None:
    with pytest.raises(ValueError, match=r"^admins: .* is not a URL such as"):
        made(admins=f"{B},{admins}")


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match=r"^admins: 'http://…@a:8080'") as refused:
        made(admins="http://joe:hidden@a:8080")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"app": ""}, r"app ''"),
        ({"app": " shop"}, r"app ' shop'"),
        ({"app": "sh\nop"}, r"app 'sh\\nop'"),
        ({"app": "s" * 201}, r"1 to 200 characters"),
        ({"beat": 0}, r"beat 0: write seconds, more than 0"),
        ({"beat": float("inf")}, r"beat inf"),
        ({"timeout": -1}, r"timeout -1"),
        ({"timeout": float("nan")}, r"timeout nan"),
        ({"weight": -1}, r"weight -1: write a whole number from 0 to 1000000"),
        ({"weight": 1_000_001}, r"weight 1000001"),
        ({"weight": True}, r"weight True"),
        ({"weight": 1.5}, r"weight 1\.5"),
        ({"load": elapse}, r"load must be a plain function"),
        ({"load": 5}, r"^load 5: write a function that returns a number from 0 to 1e9"),
        ({"app": 5}, r"^app 5: write a name"),
        ({"app": None}, r"^app None: write a name"),
        ({"address": None}, r"^address None: write http://host:port"),
        ({"admins": 5}, r"^admins: write URLs of nodes' APIs, as one text with commas or as a list"),
        ({"admins": None}, r"^admins: write URLs"),
        ({"admins": [A, 5]}, r"^admins: write URLs"),
        ({"admins": b"http://a:8080"}, r"^admins: write URLs"),
        ({"token": 5}, r"^token: write a string"),
        ({"beat": "x"}, r"^beat 'x': write seconds, more than 0"),
        ({"timeout": None}, r"^timeout None: write seconds, more than 0"),
        ({"timeout": True}, r"^timeout True: write seconds, more than 0"),
    ],
)
def test_a_wrong_argument_is_named(wrong: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        made(**wrong)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Other: 1", "tökén"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match=r"^token: ") as refused:
        made(token=token)
    assert not token or token not in str(refused.value)


class Recorded:
    """Admins that record the time of each heartbeat, which lasts as long as `takes`, and may fail or raise."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.takes = 0.0
        self.fails = False
        self.raises: Exception | None = None

    async def post(self, admins: Admins, path: str, fields: Mapping[str, Any], *rest: Any) -> AdminResult:
        """Stands for `Admins.post`."""
        if path == REGISTER:
            self.times.append(asyncio.get_running_loop().time() - START_S)
            await elapse(self.takes)
            if self.raises is not None:
                raise self.raises
        failure = AdminFailure(A, "503", "503 Away")
        return AdminResult(None, [failure]) if self.fails else AdminResult(A, [])


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """A loop on virtual time, and a clock that follows it."""
    made = VirtualLoop()
    with clock.use(VirtualClock(made, Random(1))):
        yield made
        made.discard()
    made.close()
    asyncio.set_event_loop(None)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Instead of real admins."""
    recorded = Recorded()
    monkeypatch.setattr(Admins, "post", lambda *arguments: recorded.post(*arguments))
    return recorded


def times(loop: VirtualLoop, recorded: Recorded, seconds: float, **more: Any) -> list[float]:
    """Of the heartbeats of an executor with the default interval that runs so many seconds."""

    async def run() -> None:
        async with made(**more):
            await elapse(seconds)

    loop.run_until_complete(run())
    return recorded.times


@pytest.mark.req("S2-2", "S2-13", "S2-27", "S2-51")
@pytest.mark.parametrize("takes", [0.0, 2.5])
def test_heartbeats_are_sent_every_30_s(takes: float, loop: VirtualLoop, recorded: Recorded) -> None:
    recorded.takes = takes
    assert times(loop, recorded, 95.0) == [0.0, 30.0, 60.0, 90.0]


@pytest.mark.req("S2-16", "S2-64")
def test_one_that_failed_is_tried_again_after_30_s(loop: VirtualLoop, recorded: Recorded) -> None:
    recorded.fails = True
    assert times(loop, recorded, 65.0) == [0.0, 30.0, 60.0]


def test_one_that_took_longer_than_the_interval_is_followed_at_once_by_one(
    loop: VirtualLoop, recorded: Recorded
) -> None:
    recorded.takes = 40.0
    assert times(loop, recorded, 79.0) == [0.0, 40.0, 80.0]


@pytest.mark.parametrize("wrong", [-1, float("nan"), 1.1e9, "busy", None, 10**400])
def test_a_load_that_is_no_number_in_the_range_is_logged_in_one_line(
    wrong: Any, loop: VirtualLoop, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    times(loop, recorded, 65.0, load=lambda: wrong)
    (line,) = caplog.records
    assert line.getMessage().endswith(f"load returned {wrong!r} instead of a number from 0 to 1e9")
    assert line.exc_info is None


def test_a_load_function_that_raises_is_logged_with_its_traceback(
    loop: VirtualLoop, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("the author's own")

    def load() -> float:
        raise error

    times(loop, recorded, 65.0, load=load)
    (line,) = caplog.records
    assert line.exc_info is not None
    assert line.exc_info[1] is error


def test_an_error_of_ours_ends_no_heartbeats(
    loop: VirtualLoop, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    recorded.raises = KeyError("a bug")
    assert times(loop, recorded, 65.0) == [0.0, 30.0, 60.0]
    assert [one.exc_info is not None for one in caplog.records] == [True] * 3


def nothing(context: Any) -> None:
    """A function without `@job`."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"listen": "9999"}, "listen .*write host:port"),
        ({"listen": "0.0.0.0:0"}, "listen"),
        ({"listen": "0.0.0.0:65536"}, "listen"),
        ({"listen": "http://0.0.0.0:9999"}, "listen"),
        ({"listen": 9999}, "listen"),
        ({"slots": 0}, "slots 0"),
        ({"slots": True}, "slots"),
        ({"slots": 10_001}, "slots"),
        ({"stop_timeout": 0}, "stop_timeout"),
        ({"listen": "0.0.0.0:9999", "jobs": []}, "no function with @job"),
        ({"listen": "0.0.0.0:9999", "jobs": [nothing]}, "has no @job above it"),
    ],
)
def test_what_it_cannot_serve_by_is_refused(options: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(**options)


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("0.0.0.0:9999", ("0.0.0.0", 9999)),
        (":9999", ("0.0.0.0", 9999)),
        ("[::]:9999", ("::", 9999)),
        ("shop-1.example:1", ("shop-1.example", 1)),
        (None, None),
    ],
)
def test_where_it_listens(listen: str | None, found: tuple[str, int] | None) -> None:
    assert checked_listen(listen) == found
