"""Does a worker die at the very line that its author has marked, in a story and in a process of its own?"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import timeit
from collections.abc import Callable
from typing import Any, cast

import pytest

from orchestrix import COMPLETED, Compensation, Context, NothingToUndo, Saga, Step, crash
from orchestrix.errors import ConfigError
from orchestrix.testing import Story, crash_point, given
from orchestrix.testing.crash_points import CrashPoint
from orchestrix.testing.simulation.virtual_time import elapse
from orchestrix.worker.handlers import Handler

MAIL = Saga(
    name="mail",
    steps=(
        Step("mail", "MAILING", "cmd.mail", "evt.mailed", "FILING", Compensation("cmd.recall", "evt.recalled")),
        Step("file", "FILING", "cmd.file", "evt.filed", COMPLETED, NothingToUndo("it is only a copy")),
    ),
)


class Post:
    """A provider of mail that is asked twice in a row, with nothing awaited between."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def empty(self) -> None:
        """Forgets all."""
        self.said.clear()

    async def mail(self, context: Context, command: Any) -> dict[str, int]:
        """Says what it has come to."""
        self.said.append("sent")
        try:
            crash_point("mail.sent")
            self.said.append("noted")
        finally:
            self.said.append("left")
        return {"mailId": context.app_id}

    def mail_in_place(self, context: Context, command: Any) -> None:
        """The same without a coroutine."""
        self.said.append("sent")
        crash_point("mail.sent")
        self.said.append("noted")

    async def mail_by_tasks(self, context: Context, command: Any) -> None:
        """The same, in a task of the handler's own."""

        async def send() -> None:
            await elapse(0.1)
            self.mail_in_place(context, command)

        async with asyncio.TaskGroup() as group:
            group.create_task(send())

    async def nothing(self, context: Context, command: Any) -> None:
        """Does nothing."""


POST = Post()


@pytest.fixture(autouse=True)
def post() -> None:
    """Nothing is said yet."""
    POST.empty()


def story(mail: Handler = POST.mail) -> Story:
    """A mail that is sent and filed."""
    return given(MAIL, handlers={"cmd.mail": mail, "cmd.recall": POST.nothing, "cmd.file": POST.nothing})


@pytest.mark.parametrize("word", ["before", "after"])
def test_the_worker_dies_at_that_line_and_nothing_behind_it_runs(word: str) -> None:
    told = story().crash(**cast(Any, {word: "mail.sent"})).run()
    assert POST.said == ["sent", "sent", "noted", "left"], "what is behind the line ran only in the second life"
    told.expect(state="COMPLETED")
    assert "CRASH at mail.sent" in told.table()


@pytest.mark.parametrize("mail", [POST.mail_in_place, POST.mail_by_tasks])
def test_however_the_handler_runs(mail: Callable[..., Any]) -> None:
    told = story(mail).crash(after="mail.sent").crash(after="mail.sent", nth=2).run()
    assert POST.said == ["sent", "sent", "sent", "noted"]
    told.expect(state="COMPLETED")


def test_what_the_dead_held_is_let_go_when_the_story_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    blamed: list[object] = []
    monkeypatch.setattr("orchestrix.worker.commands.execution._bug", lambda *error: blamed.append(error))
    told = story().crash(after="mail.sent").run()
    del told
    assert POST.said == ["sent", "sent", "noted", "left", "left"]
    assert not blamed, "the worker takes it for no error of the handler"


def test_crash_everywhere_comes_to_it() -> None:
    places = story().crash_everywhere(fresh=POST.empty, check=lambda: POST.said.count("noted") > 0, state="COMPLETED")
    assert CrashPoint("at", "mail.sent") in places


def test_a_mail_that_is_sent_twice_is_found_there_alone() -> None:
    def once() -> None:
        assert POST.said.count("sent") <= POST.said.count("left"), "sent and not noted"

    with pytest.raises(AssertionError) as found:
        story().crash_everywhere(fresh=POST.empty, check=once)
    assert str(found.value).splitlines()[1] == "at mail.sent: check: sent and not noted"
    assert str(found.value).startswith("1 of ")


def test_a_point_that_nobody_comes_to_is_told() -> None:
    with pytest.raises(AssertionError, match=r"the crash at mail\.lost never happened"):
        story().crash(after="mail.lost").run().expect(state="COMPLETED")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"during": "mail.sent"}, "a crash cannot be during 'mail.sent': write cmd.mail"),
        ({"after": "cmd.mial"}, r"or the name of a crash_point, e\.g\. mail\.sent"),
        ({"after": "worker.in_hand"}, r"or the name of a crash_point, e\.g\. mail\.sent"),
        ({"after": "sent"}, r"or the name of a crash_point, e\.g\. mail\.sent"),
    ],
)
def test_what_can_be_no_point_is_refused(words: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        story().crash(**cast(Any, words))


@pytest.mark.parametrize("name", ["sent", "worker.sent", "cmd.mail", "evt.mailed", "Mail.sent", "mail.", "mail sent.x"])
def test_a_name_that_could_be_ours_is_refused_at_its_passage(name: str) -> None:
    crash_point(name)  # in production nobody looks at it
    with crash.crash_point_listener(lambda _: None), pytest.raises(ConfigError, match="write two words with a dot"):
        crash_point(name)


def test_a_process_dies_at_its_second_passage() -> None:
    code = (
        "import os, sys\nfrom orchestrix import crash\nfrom orchestrix.testing import crash_point\n"
        "crash.arm(os.environ)\nfor n in range(5):\n    print(n, flush=True)\n    crash_point('mail.sent')"
    )
    env = {"ORCHESTRIX_TESTING": "1", "ORCHESTRIX_CRASH_AT": "mail.sent:2"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (137, "0\n1\n")
    assert ended.stderr == "crash point mail.sent:2 reached\n"


def test_production_loads_nothing_of_the_kit() -> None:
    code = (
        "import sys\nfrom orchestrix.testing import crash_point\ncrash_point('mail.sent')\n"
        "print(sorted(m for m in sys.modules if m.startswith(('orchestrix.testing.', 'sqlalchemy', 'pydantic'))))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def test_without_a_test_it_costs_next_to_nothing() -> None:
    rounds = 20_000
    fastest = min(timeit.repeat(lambda: crash_point("mail.sent"), number=rounds, repeat=20)) / rounds
    assert fastest < 1e-6, f"{fastest * 1e9:.0f} ns"
