"""Does a process die exactly where a test asks for it, and nowhere else?"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrix import crash
from orchestrix.cli import main
from orchestrix.errors import ConfigError

TESTING = {"ORCHESTRIX_TESTING": "1"}


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Nothing stays armed."""
    yield
    crash.arm({})


def run(source: str, at: str) -> subprocess.CompletedProcess[str]:
    """Runs the lines in a process that is to die at `at`."""
    code = f"import asyncio, os\nfrom orchestrix import crash\ncrash.arm(os.environ)\n{source}\nprint('alive')"
    env = {**TESTING, "ORCHESTRIX_CRASH_AT": at}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30)


def test_the_third_passage_is_the_last() -> None:
    passes = "\n".join(
        f"print({n}, flush=True); crash.point('events.before_ack'); crash.point('outbox.after_claim')" for n in range(5)
    )
    ended = run(passes, "outbox.after_claim:3")
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        137,
        "0\n1\n2\n",
        "crash point outbox.after_claim:3 reached\n",
    )


def test_a_point_that_is_passed_too_seldom_changes_nothing() -> None:
    ended = run("crash.point('outbox.after_claim')", "outbox.after_claim:2")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "alive\n", "")


WORK = """
async def work():
    print('before', flush=True)
    await asyncio.sleep(0.01)
    print('after', flush=True)
asyncio.run(crash.within('outbox.after_publish', work()))
"""


def test_work_ends_where_it_waits_for_the_first_time() -> None:
    ended = run(WORK, "outbox.after_publish:1")
    assert (ended.returncode, ended.stdout) == (137, "before\n")
    assert run(WORK, "outbox.after_publish:2").stdout == "before\nafter\nalive\n"
    assert run(WORK, "outbox.after_claim:1").stdout == "before\nafter\nalive\n"


@pytest.mark.parametrize("at", ["outbox.after_publish:2", ""])
async def test_work_returns_raises_and_is_cancelled_as_without(at: str) -> None:
    crash.arm({**TESTING, "ORCHESTRIX_CRASH_AT": at})
    ended = asyncio.Event()

    async def forty_two() -> int:
        return 42

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await crash.within("outbox.after_publish", forty_two()) == 42
    crash.arm({**TESTING, "ORCHESTRIX_CRASH_AT": at})
    task = asyncio.create_task(crash.within("outbox.after_publish", for_ever()))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert ended.is_set()


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("outbox.after_publish", "write POINT:N"),
        ("outbox.after_publish:0", "write POINT:N"),
        ("outbox.after_publish:x", "write POINT:N"),
        ("outbox.after_publish:1:1", "write POINT:N"),
        ("mail:1", "unknown crash point mail;"),
        ("cmd.mail:1", "unknown crash point cmd.mail;"),
        ("outbox.afterpublish:1", "unknown crash point outbox.afterpublish; known are start.before_commit"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(at: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        crash.arm({**TESTING, "ORCHESTRIX_CRASH_AT": at})
    assert "ORCHESTRIX_CRASH_AT" in str(refused.value)


@pytest.mark.parametrize("switch", [{}, {"ORCHESTRIX_TESTING": ""}, {"ORCHESTRIX_TESTING": "0"}])
def test_outside_of_tests_it_is_not_even_read(switch: dict[str, str]) -> None:
    for at in ("outbox.after_claim:1", "nonsense"):
        crash.arm({**switch, "ORCHESTRIX_CRASH_AT": at})
        assert crash._armed is None


@pytest.mark.parametrize("command", ["dev", "serve", "worker"])
def test_commands_refuse_a_point_that_is_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRIX_TESTING", "1")
    monkeypatch.setenv("ORCHESTRIX_CRASH_AT", "outbox.after_lunch:1")
    assert main([command]) == 2
    assert "unknown crash point outbox.after_lunch" in capsys.readouterr().err


def test_every_point_says_what_is_lost_there() -> None:
    assert [name for name, sentence in crash.POINTS.items() if not sentence.endswith(".")] == []


def test_a_point_that_is_not_armed_costs_next_to_nothing() -> None:
    rounds = 20_000
    fastest = min(timeit.repeat(lambda: crash.point("outbox.after_claim"), number=rounds, repeat=20)) / rounds
    assert fastest < 1e-6, f"{fastest * 1e9:.0f} ns"
