"""Does an executor stay registered, whatever its admins do, and deregister last?"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

from orchestrix import Executor, clock
from orchestrix.clock import SystemSource
from orchestrix.telemetry import log_events
from tests.support import eventually, free_port, holds, logged

from .fake_admin import (
    ACCEPTS,
    DEADLINE_S,
    DEREGISTER,
    REGISTER,
    Answer,
    FakeAdmin,
    answer,
    drip,
    fake_admin,
    hang,
    raw,
    when,
)

ADDRESS = "http://10.0.0.7:9999"
BEAT_S = 0.1
LONG_S = 600.0
"""No second heartbeat within a test."""
SLACK_S = 1.0
"""What a busy machine adds to a time."""


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orchestrix.worker")


@pytest.fixture
async def admins() -> AsyncIterator[tuple[FakeAdmin, FakeAdmin]]:
    """Two that accept."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(fake_admin()), await stack.enter_async_context(fake_admin())


@pytest.fixture
def admin(admins: tuple[FakeAdmin, FakeAdmin]) -> FakeAdmin:
    """One of them."""
    return admins[0]


def executor(*admins: FakeAdmin | str, beat: float = BEAT_S, timeout: float = 5.0, **more: Any) -> Executor:
    urls = [one if isinstance(one, str) else one.url for one in admins]
    return Executor("shop", ADDRESS, ",".join(urls), "s3cret", beat=beat, timeout=timeout, **more)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= level and one.name == "orchestrix.worker"]


@pytest.mark.req("S2-1", "S2-11", "S2-12", "S2-54")
async def test_it_registers_as_it_starts_and_says_what_it_is(admin: FakeAdmin) -> None:
    async with executor(admin, beat=LONG_S, weight=3, load=lambda: 0.5) as running:
        (posted,) = admin.posted
    assert (posted.method, posted.path) == ("POST", REGISTER)
    assert posted.headers["authorization"] == "Bearer s3cret"
    assert posted.headers["content-type"] == "application/json"
    timestamp = posted.body["timestamp"]
    assert abs((clock.now() - clock.now().fromisoformat(timestamp)).total_seconds()) < 60
    assert posted.body == {
        "registryGroup": "EXECUTOR",
        "registryKey": "shop",
        "registryValue": ADDRESS,
        "instance": running.instance,
        "state": "UP",
        "weight": 3,
        "load": 0.5,
        "runs": [],
        "timestamp": timestamp,
    }


@pytest.mark.req("S2-17")
async def test_it_deregisters_its_own_registration_as_it_ends(admin: FakeAdmin) -> None:
    async with executor(admin, beat=LONG_S) as running:
        assert admin.paths() == [REGISTER]
    assert admin.paths() == [REGISTER, DEREGISTER]
    assert admin.posted[-1].body == {
        "registryGroup": "EXECUTOR",
        "registryKey": "shop",
        "registryValue": ADDRESS,
        "instance": running.instance,
    }
    assert admin.posted[-1].headers["authorization"] == "Bearer s3cret"


async def test_each_has_an_instance_of_its_own_which_all_its_heartbeats_have(admin: FakeAdmin) -> None:
    async with executor(admin) as one:
        await admin.has(3)
    assert {posted.body["instance"] for posted in admin.posted} == {one.instance}
    assert one.instance != executor(admin).instance


async def test_heartbeats_keep_their_interval_while_the_clock_jumps(admin: FakeAdmin) -> None:
    beat = 0.3
    with clock.use(Jumping()):
        async with executor(admin, beat=beat):
            await admin.has(4)
    times = [posted.at for posted in admin.heartbeats()]
    assert min(late - early for early, late in pairwise(times)) > beat / 3


class Jumping(SystemSource):
    """A clock that is set ahead by an hour each time it is read, and back by two every third time."""

    def __init__(self) -> None:
        self._read = 0

    def wall(self) -> float:
        self._read += 1
        return super().wall() + 3600 * (self._read % 3)


async def dead(admin: FakeAdmin) -> None:
    await admin.stop()


async def hanging(admin: FakeAdmin) -> None:
    admin.answers = hang


@pytest.mark.req("S2-15", "S2-31", "S2-63", "S2-65", "S2-67")
@pytest.mark.parametrize("fails", [dead, hanging])
async def test_the_next_admin_takes_over_in_the_same_heartbeat_and_keeps_it(
    fails: Any, admins: tuple[FakeAdmin, FakeAdmin], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = admins
    await fails(first)
    loop = asyncio.get_running_loop()
    began, timeout = loop.time(), 1.0
    async with executor(first, second, timeout=timeout):
        assert second.heartbeats()[0].at - began < timeout + SLACK_S
        tried = len(first.posted)
        await second.has(4)
        assert len(first.posted) == tried, "it stays with the one that accepted"
    assert second.paths()[-1] == DEREGISTER
    assert len(first.posted) == tried
    (line,) = lines(caplog)
    assert f"registered at {second.url} instead" in line
    assert first.url in line
    assert len(logged(caplog, log_events.EXECUTOR_REGISTERED)) == 1


@pytest.mark.req("S2-31")
async def test_each_admin_is_tried_and_after_the_last_the_first(admins: tuple[FakeAdmin, FakeAdmin]) -> None:
    first, second = admins
    async with fake_admin() as third, executor(first, second, third):
        await first.has(1)
        for admin in (first, second):
            await admin.stop()
        await third.has(2)
        await first.start()
        await third.stop()
        await first.has(2, more=True)
    assert second.posted == []


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (hang, "no answer within 0.1 s"),
        (drip, "no answer within 0.1 s"),
        (raw(b""), "Remote end closed connection without response"),
        (raw(b"HTTP/1.1 20"), "its answer is not HTTP"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "its answer is not HTTP"),
        (raw(b"\xff" * 70000), "its answer is not HTTP"),
        (raw(b"HTTP/1.1 503 Away\r\nContent-Length: 900\r\n\r\n{"), "503 Away"),
        (answer(503, {"detail": "The database is away."}, Retry_After="7"), "503 The database is away"),
        (answer(500, "no problem of ours"), "500 Words"),
        (answer(302, Location="http://127.0.0.1:1/"), "302 Words"),
    ],
    ids=["hangs", "drips", "closes", "closes early", "not http", "noise", "cut", "503", "500", "moved"],
)
async def test_it_carries_on_through_any_answer(
    answers: Answer, sentence: str, admin: FakeAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.answers, admin.goodbye = answers, ACCEPTS
    timeout = 0.1 if sentence.startswith("no answer") else 10.0
    async with asyncio.timeout(DEADLINE_S), executor(admin, timeout=timeout):
        await admin.has(3)
        if sentence.startswith("Remote"):  # a request that was cut off may show as a reset, too
            sentence = ""
        (line,) = lines(caplog)
        assert f"{admin.url}: {sentence}" in line
        admin.answers = ACCEPTS
        await eventually(lambda: len(lines(caplog)) == 2, deadline=DEADLINE_S)
    assert "registered again" in lines(caplog)[1]
    await eventually(lambda: not threads(), deadline=DEADLINE_S, message="no thread waits for such an answer")


@pytest.mark.req("S2-16", "S2-69")
async def test_it_starts_without_any_admin_and_registers_when_one_comes(
    admins: tuple[FakeAdmin, FakeAdmin], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = admins
    for admin in admins:
        await admin.stop()
    async with executor(first, second):
        (line,) = lines(caplog, logging.ERROR)
        assert f"executor shop at {ADDRESS}: no admin accepts its heartbeats" in line
        assert f"{first.url}: Connection refused; {second.url}: Connection refused" in line
        assert "retrying every 0.1 s" in line
        assert len(logged(caplog, log_events.EXECUTOR_FAILED)) == 1
        await second.start()
        await second.has(1)


@pytest.mark.req("S2-64", "S2-69")
async def test_a_failure_is_logged_first_and_each_tenth_time_and_its_end(
    admin: FakeAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.first += [answer(503, {"detail": "The database is away."})] * 25
    async with executor(admin, beat=0.02):
        await admin.has(26)
        await eventually(lambda: "registered again" in lines(caplog)[-1], deadline=DEADLINE_S)
        admin.answers = answer(503, {"detail": "Again."})
        await eventually(lambda: "Again" in lines(caplog)[-1], deadline=DEADLINE_S)
    *failed, again, anew, _ = lines(caplog)
    assert [text.partition("; ")[2].partition(",")[0] for text in failed] == [
        "1 heartbeat failed",
        "10 heartbeats failed",
        "20 heartbeats failed",
    ]
    assert again == f"executor shop at {ADDRESS}: registered again at {admin.url} after 25 failed heartbeats"
    assert "1 heartbeat failed" in anew


async def test_a_new_cause_is_logged_at_once(admin: FakeAdmin, caplog: pytest.LogCaptureFixture) -> None:
    admin.first, admin.answers = [answer(503)] * 2, answer(500)
    async with executor(admin):
        await eventually(lambda: len(lines(caplog)) == 2, deadline=DEADLINE_S)
    assert "503 Words); 1 heartbeat failed" in lines(caplog)[0]
    assert "500 Words); 3 heartbeats failed" in lines(caplog)[1]


@pytest.mark.parametrize("status", [401, 422])
async def test_what_is_refused_is_logged_in_the_words_of_the_server(
    status: int, admins: tuple[FakeAdmin, FakeAdmin], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = admins
    first.answers = second.answers = answer(status, {"detail": "app shop:\n is not\x1b[2J here."})
    async with executor(first, second, beat=LONG_S):
        (line,) = lines(caplog, logging.ERROR)
    assert len(second.posted) == 2, "another one may know more"
    assert line.count(f"{status} app shop: is not") == 2
    assert line.isprintable()
    assert "s3cret" not in line


async def test_a_name_server_that_hangs_or_fails_is_an_admin_that_fails(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = threading.Event()
    real = socket.getaddrinfo

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "slow.example":
            assert hangs.wait(DEADLINE_S)
        if host == "none.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1" if host == "slow.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with fake_admin() as slow:
        names = (f"http://slow.example:{slow.port}", "http://none.example:80")
        async with executor(*names, admin, beat=LONG_S, timeout=1.0):
            assert admin.paths() == [REGISTER]
        assert admin.paths() == [REGISTER, DEREGISTER]
        hangs.set()
        await eventually(lambda: not threads(), deadline=DEADLINE_S)
        assert slow.posted == [], "what is late is not sent, or it would follow the deregistration"
    assert "slow.example" in lines(caplog)[0]
    assert "Name or service not known" in lines(caplog)[0]


def threads() -> list[str]:
    """Those that post."""
    return [one.name for one in threading.enumerate() if one.name == "orchestrix-beside"]


async def test_an_author_who_occupies_all_threads_of_the_loop_stays_registered(admin: FakeAdmin) -> None:
    busy = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    occupied = asyncio.ensure_future(asyncio.to_thread(busy.wait, DEADLINE_S))
    try:
        async with executor(f"http://localhost:{admin.port}"):
            await admin.has(2)
            assert not occupied.done()
    finally:
        busy.set()
        await occupied


async def test_the_loop_runs_on_while_an_admin_hangs(admin: FakeAdmin) -> None:
    opened, ticks = asyncio.Event(), 0
    admin.answers = when(opened, ACCEPTS)
    async with asyncio.TaskGroup() as group:
        entering = group.create_task(executor(admin).__aenter__())
        await admin.has(1)
        for ticks in range(1000):  # noqa: B007
            await asyncio.sleep(0)
        assert not entering.done()
        opened.set()
    await entering.result().__aexit__()
    assert ticks == 999


async def test_drain_is_in_the_next_heartbeat_which_is_sent_at_once(admin: FakeAdmin) -> None:
    async with executor(admin, beat=LONG_S) as running:
        running.drain()
        assert (await admin.has(2)).body["state"] == "DRAINING"
    assert [one.body["state"] for one in admin.heartbeats()] == ["UP", "DRAINING"]


async def test_drain_during_a_heartbeat_follows_it(admin: FakeAdmin) -> None:
    opened = asyncio.Event()
    async with executor(admin, beat=BEAT_S) as running:
        admin.answers = when(opened, ACCEPTS)
        await admin.has(1, more=True)
        running.drain()
        admin.answers = ACCEPTS
        seen = len(admin.posted)
        opened.set()
        await admin.has(2, more=True)
    assert {one.body["state"] for one in admin.heartbeats()[seen:]} == {"DRAINING"}


@pytest.mark.req("S2-17")
async def test_the_last_heartbeat_ends_before_the_deregistration(admin: FakeAdmin) -> None:
    opened = asyncio.Event()
    order: list[str] = []

    async def slow(writer: asyncio.StreamWriter) -> None:
        await opened.wait()
        order.append("heartbeat")
        await ACCEPTS(writer)

    async def goodbye(writer: asyncio.StreamWriter) -> None:
        order.append("goodbye")
        await ACCEPTS(writer)

    running = executor(admin)
    async with asyncio.timeout(DEADLINE_S):
        await running.__aenter__()
        admin.answers, admin.goodbye = slow, goodbye
        await admin.has(1, more=True)
        leaving = asyncio.create_task(running.__aexit__())
        await holds(lambda: DEREGISTER not in admin.paths(), during=3 * BEAT_S, message="it waits for the heartbeat")
        opened.set()
        await asyncio.wait_for(leaving, DEADLINE_S)
        assert order == ["heartbeat", "goodbye"]
        seen = len(admin.posted)
        await holds(lambda: len(admin.posted) == seen, during=3 * BEAT_S, message="no heartbeat after it")


async def test_a_heartbeat_that_hangs_is_cut_before_the_deregistration(admins: tuple[FakeAdmin, FakeAdmin]) -> None:
    first, second = admins
    loop, began = asyncio.get_running_loop(), 0.0
    async with executor(first, second, timeout=1.0):
        first.answers, first.goodbye = hang, ACCEPTS
        await first.has(1, more=True)
        began = loop.time()
    assert loop.time() - began < 1.0 + SLACK_S
    assert first.cut == 1
    assert first.paths()[-1] == DEREGISTER
    assert second.posted == [], "no other admin is asked for the heartbeat of one who leaves"


async def test_it_deregisters_with_the_admin_that_it_stayed_with_then_with_the_others(
    admins: tuple[FakeAdmin, FakeAdmin], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = admins
    await first.stop()
    async with executor(first, second, beat=LONG_S, timeout=1.0):
        await first.start()
        second.goodbye = hang
    assert (first.paths(), second.paths()) == ([DEREGISTER], [REGISTER, DEREGISTER])
    assert not [line for line in lines(caplog) if "deregistered" in line]


async def test_a_deregistration_that_fails_is_logged_and_nothing_raised(
    admin: FakeAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    async with executor(admin, beat=LONG_S):
        admin.goodbye = answer(503, {"detail": "Away."})
    (line,) = lines(caplog)
    assert line == f"executor shop at {ADDRESS}: could not be deregistered: {admin.url}: 503 Away"


async def test_one_that_never_registered_deregisters_all_the_same(
    admin: FakeAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.answers, admin.goodbye = hang, ACCEPTS
    async with executor(admin, beat=LONG_S, timeout=0.5):
        pass
    assert admin.paths() == [REGISTER, DEREGISTER], "what hung may have been stored"


async def test_one_that_is_cancelled_as_it_starts_deregisters(admin: FakeAdmin) -> None:
    opened = asyncio.Event()
    admin.answers, admin.goodbye = when(opened, ACCEPTS), ACCEPTS
    entering = asyncio.create_task(executor(admin).__aenter__())
    await admin.has(1)
    entering.cancel()
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(entering, DEADLINE_S)
    assert admin.paths() == [REGISTER, DEREGISTER]


async def test_one_that_is_cancelled_as_it_ends_leaves_no_heartbeat_behind(admin: FakeAdmin) -> None:
    running = executor(admin)
    async with asyncio.timeout(DEADLINE_S):
        await running.__aenter__()
        admin.answers = hang
        await admin.has(1, more=True)
        leaving = asyncio.create_task(running.__aexit__())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("heartbeats of")]
    await eventually(lambda: admin.cut == 1, deadline=DEADLINE_S)


async def test_the_error_of_its_block_is_not_lost(admin: FakeAdmin) -> None:
    with pytest.raises(RuntimeError, match="the author's own"):
        async with executor(admin):
            raise RuntimeError("the author's own")
    assert admin.paths()[-1] == DEREGISTER


async def test_it_is_entered_once(admin: FakeAdmin) -> None:
    async with executor(admin, beat=LONG_S) as running:
        with pytest.raises(RuntimeError, match="entered once"):
            await running.__aenter__()
    with pytest.raises(RuntimeError, match="entered once"):
        await running.__aenter__()


@pytest.mark.parametrize(
    "wrong",
    [ZeroDivisionError, float("nan"), -1.0, "busy", None, 1.1e9, 10**400],
    ids=["raises", "nan", "negative", "text", "none", "too much", "huge"],
)
async def test_a_load_that_cannot_be_had_is_left_out_and_logged_once(
    wrong: Any, admin: FakeAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    value: Any = 2

    def load() -> Any:
        if value is ZeroDivisionError:
            raise ZeroDivisionError
        return value

    async with executor(admin, load=load):
        assert admin.posted[0].body["load"] == 2
        value = wrong
        await admin.has(3, more=True)
        assert len([line for line in lines(caplog) if "no load" in line]) == 1
        value = 0
        assert (await admin.has(2, more=True)).body["load"] == 0
    assert "load" not in admin.heartbeats()[2].body


@pytest.mark.req("S2-29")
async def test_after_a_restart_it_registers_at_once_under_another_instance(admin: FakeAdmin) -> None:
    instances = []
    for _ in range(2):
        async with executor(admin, beat=LONG_S) as running:
            instances.append(running.instance)
    assert admin.paths() == [REGISTER, DEREGISTER] * 2
    assert [one.body["instance"] for one in admin.heartbeats()] == instances
    assert len(set(instances)) == 2


async def test_a_path_before_the_api_is_kept(admin: FakeAdmin) -> None:
    async with executor(f"{admin.url}/orchestrix/", beat=LONG_S):
        pass
    assert admin.paths() == [f"/orchestrix{REGISTER}", f"/orchestrix{DEREGISTER}"]


async def test_an_admin_that_expects_tls_is_one_that_fails(admin: FakeAdmin, caplog: pytest.LogCaptureFixture) -> None:
    async with executor(
        admin.url.replace("http", "https"), f"http://127.0.0.1:{free_port()}", beat=LONG_S, timeout=0.3
    ):
        assert admin.posted == []
    assert "https://127.0.0.1" in lines(caplog)[0]
