"""What does somebody who types `pytest` get from the kit, and what does it cost everybody else?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from orchestrix.testing import open_scenarios, plugin
from tests.documents import README, block

TESTS = """
import gc
import pytest
from orchestrix.testing import StoryError, given
import orders

def test_plain():
    story = given(orders.ORDER, handlers=orders, data={"film": "Metropolis"}).run()
    other = given(orders.ORDER, handlers=orders, data={"film": "sold out"}).run()
    unplayed = given(orders.ORDER, handlers=orders, data={"film": "Metropolis"})
    assert 1 == 2

def test_expect():
    given(orders.ORDER, handlers=orders, data={"film": "Metropolis"}).run().expect(state="FAILED")

def test_dropped():
    story = given(orders.ORDER, handlers=orders, data={"film": "Metropolis"}).run()
    story = None
    gc.collect()
    assert 1 == 2

kept = []

@pytest.fixture
def closed():
    yield
    for ask in (kept[0].pause, kept[0].table):
        with pytest.raises(StoryError, match="the story is closed"):
            ask()

def test_project(closed, orchestrix_story):
    story = orchestrix_story("order", data={"film": "Metropolis"})
    story.run().expect(state="COMPLETED", data={"seat": "row 1"})
    kept.append(story)

def test_other_handlers(orchestrix_story):
    story = orchestrix_story(orders.ORDER, handlers=[orders.reserve, orders.free], data={"film": "Metropolis"})
    story.when("cmd.pay").succeeds()
    story.run().expect(state="COMPLETED")

def test_unknown(orchestrix_story):
    orchestrix_story("odrer")
"""
SPY = """
import sys

def pytest_unconfigure():
    heavy = ("orchestrix.testing.scenario", "orchestrix.saga", "sqlalchemy", "pydantic", "aio_pika", "greenlet")
    print("loaded:", sorted(name for name in heavy if name in sys.modules))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project."""
    (tmp_path / "orders.py").write_text(block(README, "python", "ORDER = Saga("))
    (tmp_path / "orchestrix.toml").write_text('sagas = ["orders"]\nworkers = ["orders"]\n')
    (tmp_path / "test_orders.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    """What `pytest` says there."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRIX_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", *arguments]
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return ended.stdout + ended.stderr


def parts(output: str) -> dict[str, str]:
    """The report of each test that failed."""
    _, *found = re.split(r"^_+ (test_\w+) _+$", output.partition("short test summary")[0], flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_fails_shows_what_happened(folder: Path, processes: str) -> None:
    output = run(folder, "-n", processes)
    told = parts(output)
    assert "4 failed, 2 passed in" in output
    assert set(told) == {"test_plain", "test_expect", "test_dropped", "test_unknown"}, output
    first, second = told["test_plain"].split(plugin.SECTION)[1:]
    assert "saga    COMPLETED  evt.paid" in first
    assert "SoldOut: no seat is left" in second
    assert plugin.SECTION not in told["test_expect"], "its error shows the table"
    assert "saga    COMPLETED  evt.paid" in told["test_expect"]
    assert plugin.SECTION not in told["test_dropped"], "nobody keeps a story that the test has dropped"
    assert "orchestrix.toml has no saga 'odrer': it has order" in told["test_unknown"]


def test_it_can_be_switched_off(folder: Path) -> None:
    output = run(folder, "-p", "no:orchestrix", "-k", "plain or project")
    assert plugin.SECTION not in output
    assert "fixture 'orchestrix_story' not found" in output


def test_a_project_without_a_file_is_told(folder: Path) -> None:
    (folder / "orchestrix.toml").unlink()
    output = run(folder, "-k", "project")
    assert re.search(r"\S+/orchestrix\.toml does not exist: give orchestrix_story a Saga and its handlers", output), (
        output
    )


def test_who_does_not_use_it_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SPY)
    (tmp_path / "test_other.py").write_text("def test_other():\n    assert False\n")
    output = run(tmp_path, "-s", "-p", "no:xdist")
    assert "1 failed" in output
    assert "loaded: []" in output


def test_its_names_are_its_own() -> None:
    assert {found.value for found in entry_points(group="pytest11", name="orchestrix")} == {plugin.__name__}
    public = [name for name, value in vars(plugin).items() if type(value).__name__ == "FixtureFunctionDefinition"]
    assert public == ["orchestrix_story"]


def test_it_is_at_work_here_too() -> None:
    assert open_scenarios.stories is not None
