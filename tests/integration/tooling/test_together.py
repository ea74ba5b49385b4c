"""Do tests that must not run beside each other stay in one process?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import together
from tests.architecture.source import ROOT
from tests.together import (
    BUSIEST,
    BY_FILE,
    LONGEST,
    MOST,
    PROCESSORS,
    TOGETHER,
    WAITING,
    Together,
    crowds,
    from_the_end,
    group,
    ordered,
)

TESTS = """
import os, pytest, time
from pathlib import Path
@pytest.mark.parametrize("turn", range(20))
def test_it(turn):
    with Path("seen").open("a") as seen:
        seen.write(f"{__file__} {os.getpid()}\\n")
    time.sleep(0.02)
"""
STARTS_DEV = re.compile(r'\("dev"|"dev", "--port"|start_dev\(|dev_dies\(')


@pytest.mark.parametrize("start", [start for starts in TOGETHER.values() for start in starts])
def test_a_group_names_what_is_there(start: str) -> None:
    path, _, name = start.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}" in (ROOT / path).read_text()


def test_the_first_group_that_fits_counts() -> None:
    assert group("tests/fault/test_crash_points.py::test_dev_dies[x]") == "dev"
    assert group("tests/fault/test_crash_points.py::test_a_process_dies[x]") == "crash points of sagas"
    assert group("tests/fault/test_crash_points_of_jobs.py::test_a_process_dies[x]") == "crash points of jobs"
    assert group("tests/fault/test_links.py::test_slow_links_with_jitter") == "breakable servers"
    assert (
        group("tests/migrations/test_x.py::test_y[tests/fault/]") == "tests/migrations/test_x.py::test_y[tests/fault/]"
    )


def test_tests_that_take_milliseconds_go_by_the_file_and_last() -> None:
    quick = group("tests/unit/test_x.py::test_y[tests/fault/]")
    assert quick == "tests/unit/test_x.py"
    assert not together.waits(quick)
    assert ordered([quick, DOES, WAITS]) == [WAITS, quick, DOES]


def test_every_test_that_starts_dev_is_in_its_group() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = str(path.relative_to(ROOT))
        for test in re.split(r"^(?:async )?def (?=test_)", path.read_text(), flags=re.MULTILINE)[1:]:
            if not name.startswith(("tests/unit/", "tests/integration/tooling/")) and STARTS_DEV.search(test):
                id = f"{name}::{test.partition('(')[0]}"
                assert group(id) == "dev", id


@pytest.mark.parametrize(
    ("paths", "count"),
    [
        (["tests"], MOST),
        (["tests/unit", "tests/integration/cli"], MOST),
        (["tests/unit/"], min(PROCESSORS, MOST)),
        (["tests/unit/test_config.py::test_x", "tests/simulation"], min(PROCESSORS, MOST)),
    ],
)
def test_where_no_test_waits_there_are_no_more_processes_than_processors(paths: list[str], count: int) -> None:
    assert together.processes(paths) == count


WAITS, DOES = "tests/acceptance/test_kills.py::test_x", "tests/conformance/test_x.py::test_x"
LIGHT = "tests/integration/jobs/test_x.py::test_x"


@pytest.mark.parametrize(
    ("others", "busy"),
    [
        ([[], []], False),
        ([["breakable servers"], []], False),
        ([["breakable servers"], [DOES]], False),
        ([["breakable servers"], [WAITS, DOES]], True),
        ([["dev"]], True),
        ([[DOES]], False),
    ],
)
def test_all_processes_but_one_wait(others: list[list[str]], busy: bool) -> None:
    assert from_the_end(others) == busy


@pytest.mark.parametrize(
    ("others", "light"),
    [
        ([[WAITS], ["dev"], [WAITS], [DOES]], True),
        ([[WAITS], ["dev"], [LIGHT, WAITS], [DOES]], True),
        ([[WAITS], ["dev"], [LIGHT], [DOES]], False),
        ([[WAITS], ["dev"], [DOES], [DOES]], False),
        ([], False),
    ],
)
def test_beside_three_processes_with_heavy_tests_others_take_light_ones(others: list[list[str]], light: bool) -> None:
    assert together.takes_light(others) == light


def test_what_is_light_waits_and_has_no_group() -> None:
    assert together.is_light(LIGHT)
    heavy = (WAITS, DOES, "tests/integration/api/test_x.py::test_x", group("tests/integration/cli/test_dev.py::test_x"))
    assert not any(map(together.is_light, heavy))


def test_all_kinds_are_begun_at_once() -> None:
    """Three processes run what is heavy, one what keeps the processor busy, one what is light; in the end all help."""
    scheduler, processes, completes = scheduled(5, [WAITS] * 30 + [LIGHT] * 10 + [DOES] * 10)

    def kinds() -> list[str]:
        first = [next(iter(scheduler.assigned_work[one])) for one in processes]
        return sorted(
            "light" if together.is_light(one) else "heavy" if together.waits(one) else "busy" for one in first
        )

    for _ in range(3):
        assert kinds() == ["busy", "heavy", "heavy", "heavy", "light"]
        for process in processes:
            completes(process)
    while scheduler.workqueue:
        for process in processes:
            completes(process)


def test_those_that_wait_are_at_the_beginning_and_the_others_begin_at_the_end() -> None:
    assert ordered([DOES, "proxy", f"{DOES}2", WAITS]) == ["proxy", WAITS, f"{DOES}2", DOES]


def test_of_those_that_do_not_wait_the_longest_come_first() -> None:
    long = "tests/simulation/test_owners.py::test_x"
    assert ordered([DOES, long, f"{long}2", f"{DOES}2"]) == [f"{DOES}2", DOES, f"{long}2", long]
    assert ordered([long, BUSIEST[0]]) == [long, BUSIEST[0]]


def test_crash_points_keep_the_processor_busy() -> None:
    assert BUSIEST[0] in TOGETHER
    assert not together.waits(BUSIEST[0])
    assert together.waits("crash points of jobs")


def test_the_longest_groups_come_first() -> None:
    assert ordered([WAITS, "dev", "proxy", *reversed(LONGEST[:-1])]) == [*LONGEST, WAITS, "proxy"]
    assert set(LONGEST) <= TOGETHER.keys()


@pytest.mark.parametrize(
    ("others", "too_many"),
    [
        ([[DOES], [DOES]], True),
        ([[DOES], [DOES], [WAITS]], True),
        ([[DOES], [DOES, WAITS]], False),
        ([[DOES], []], False),
    ],
)
def test_without_tests_that_wait_no_more_processes_than_processors_go_on(
    others: list[list[str]], too_many: bool
) -> None:
    assert crowds(others, 2) == too_many


class Process:
    """What the scheduler knows of a process that runs tests."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False

    def shutdown(self) -> None:
        self.shutting_down = True

    def send_runtest_some(self, places: list[int]) -> None:
        """They are counted where they are given."""


def scheduled(count: int, tests: list[str]) -> tuple[Together, list[Any], Callable[[Any], None]]:
    """Tests that so many processes have begun to share, and what a process calls when one of its tests has ended."""
    names = [f"{test}{number}" for number, test in enumerate(tests)]
    processes = [cast(Any, Process(str(number))) for number in range(count)]
    config = SimpleNamespace(getvalue=lambda name: ["popen"] * count, option=SimpleNamespace(loadscopereorder=False))
    scheduler = Together(cast(Any, config))
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, names)
    scheduler.schedule()

    def completes(process: Any) -> None:
        if scheduler.assigned_work[process]:
            scheduler.mark_test_complete(process, names.index(next(iter(scheduler.assigned_work[process]))))

    return scheduler, processes, completes


def test_one_that_ends_is_no_reason_for_others_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still have tests that do not wait, which take minutes: meanwhile the others share what is left."""
    monkeypatch.setattr(together, "PROCESSORS", 2)
    scheduler, (first, second, third), completes = scheduled(3, [WAITS] * 3 + [DOES] * 60)
    for process in (first, second, first):
        completes(process)
    assert first.shutting_down
    assert scheduler.assigned_work[first]
    while scheduler.workqueue:
        assert not second.shutting_down
        assert not third.shutting_down
        completes(second)
        completes(third)


@pytest.mark.parametrize("start", [*WAITING, *BUSIEST[1:], *BY_FILE])
def test_there_are_such_tests(start: str) -> None:
    assert (ROOT / start).is_file() or list((ROOT / start).glob("test_*.py"))


def test_what_ends_its_process_is_run_once_and_the_rest_by_others(tmp_path: Path) -> None:
    """Also what was to follow in its group."""
    deadly = TESTS.replace("    with Path", "    if turn == 7:\n        os._exit(3)\n    with Path")
    result = ran(tmp_path, {"fault/test_one.py": deadly, "bench/test_three.py": TESTS})
    assert "1 failed, 39 passed" in result.stdout, result.stdout
    assert result.stdout.count("replacing crashed worker") == 1


def test_a_process_too_many_ends_and_every_test_is_run_once(tmp_path: Path) -> None:
    result = ran(tmp_path, {"bench/test_one.py": TESTS, "bench/test_two.py": TESTS}, processes=PROCESSORS + 2)
    assert "40 passed" in result.stdout, result.stdout + result.stderr
    runs = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(runs) == 40
    assert len({pid for _, pid in runs}) == PROCESSORS


SCHEDULER = """
from tests.together import Together
def pytest_xdist_make_scheduler(config, log):
    return Together(config, log)
"""


def ran(
    folder: Path, tests: dict[str, str], processes: int = 2, conftest: str = SCHEDULER
) -> subprocess.CompletedProcess[str]:
    """These tests in so many processes."""
    (folder / "conftest.py").write_text(conftest)
    for name, text in tests.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", str(processes), "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, "--rootdir", ".", "-c", os.devnull, "tests"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_group_is_run_by_one_process_and_the_rest_beside_it(tmp_path: Path) -> None:
    names = ("fault/test_one.py", "fault/test_two.py", "bench/test_three.py")
    ours = "from tests.conftest import pytest_xdist_make_scheduler\n"  # a second more for each process
    result = ran(tmp_path, dict.fromkeys(names, TESTS), conftest=ours)
    assert result.returncode == 0, result.stdout + result.stderr
    runs = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(runs) == 60
    assert len({pid for path, pid in runs if "fault" in path}) == 1
    assert len({pid for _, pid in runs}) == 2
