"""Does the code keep the rules that no linter knows?"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from orchestrix.cluster.drain_requests import DrainRequester
from orchestrix.jobs.cancellation import JobCanceller
from orchestrix.jobs.retry import JobRetrier
from tests.architecture import budget
from tests.architecture.source import PRODUCT, ROOT, Module, modules

CLOCK = "orchestrix/clock.py"
FORBIDDEN_WORDS = ("manager", "helper", "util", "common")
TIME_AND_CHANCE = {
    "time": {
        f"{clock}{unit}" for clock in ("time", "monotonic", "perf_counter", "process_time") for unit in ("", "_ns")
    }
    | {"gmtime", "localtime", "ctime", "strftime"},
    "random": {"*"},
    "secrets": {"*"},
    "uuid": {"uuid1", "uuid3", "uuid4", "uuid5", "getnode"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "os": {"urandom", "getrandom"},
}
# Waiting itself is written here; the others wait by `eventually` or by a signal.
MAY_SLEEP = {"tests/support.py", "tests/servers/reaper.py"}
# These wait for nothing: they keep the pace of a load, take samples, or do what a plan says at its time.
KEEP_TIME = {
    "tests/acceptance/test_control.py",
    "tests/bench/load.py",
    "tests/bench/members.py",
    "tests/bench/node.py",
    "tests/bench/peers/celery_client.py",
    "tests/bench/peers/dbos_app.py",
    "tests/conformance/store/test_clones.py",
    "tests/conformance/store/test_shard_coordinators.py",
    "tests/fault/brief.py",
    "tests/fault/changing.py",
    "tests/fault/load.py",
    "tests/fault/nemesis.py",
    "tests/fault/parcels.py",
    "tests/fault/proxy.py",
    "tests/fault/test_clients.py",
    "tests/fault/test_outside_stalled_reader.py",
    "tests/fault/test_rolling.py",
    "tests/integration/cli/checked_worker.py",
    "tests/integration/jobs/test_sharing.py",
    "tests/integration/orchestration/test_instant.py",
    "tests/integration/orchestration/test_slow_place.py",
    "tests/integration/shards/sockets.py",
    "tests/shard_fleet/program.py",
    "tests/shard_fleet/plain.py",
    "tests/simulation/test_stories.py",
    "tests/unit/shards/scene.py",
    "tests/unit/shards/sdk.py",
    "tests/unit/shards/test_coordinator.py",
    "tests/unit/shards/test_flow.py",
    "tests/unit/shards/test_listening.py",
    "tests/unit/shards/test_member.py",
    "tests/unit/testing/test_member_story.py",
    "tests/unit/tooling/test_virtual_time.py",
    "tests/unit/workers/test_deaths.py",
    "tests/unit/workers/test_guarded.py",
    "tests/unit/workers/town.py",
}


def test_layers_keep_their_import_rules() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_code_keeps_its_size_budget() -> None:
    assert list(budget.measure().excesses()) == []


def test_only_the_clock_asks_for_time_and_chance() -> None:
    found = [
        f"{module.place}:{line} {what}"
        for module in modules("orchestrix")  # the migrations import none of the code, the service public names alone
        if module.place != CLOCK
        for line, what in time_and_chance(module.tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "from time import monotonic",
        "import random as r",
        "from uuid import uuid4",
        "import uuid\nuuid.uuid4()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now()",
        "import os\nos.urandom(3)",
    ],
)
def test_time_and_chance_are_seen(source: str) -> None:
    assert list(time_and_chance(ast.parse(source)))


def test_uuids_and_times_may_be_read() -> None:
    source = "from uuid import UUID\nfrom datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)"
    assert list(time_and_chance(ast.parse(source))) == []


def test_every_product_module_asks_its_question() -> None:
    wrong = [module.place for module in modules(*PRODUCT) if module.text.strip() and not asks_a_question(module)]
    assert wrong == []


def test_every_test_module_says_what_it_is_about() -> None:
    assert [m.place for m in modules("tests") if m.text.strip() and not ast.get_docstring(m.tree)] == []


def test_names_say_what_a_thing_is() -> None:
    found = [
        f"{module.place}: {name}"
        for module in modules(*PRODUCT, "tests")
        for name in [module.path.stem, *class_names(module.tree)]
        if any(word in words(name) for word in FORBIDDEN_WORDS)
    ]
    assert found == []


def test_tests_wait_for_a_reason() -> None:
    found = [
        f"{module.place}:{line}"
        for module in modules("tests")
        if module.place not in MAY_SLEEP | KEEP_TIME
        for line in bare_sleeps(module.tree)
    ]
    assert found == []


def test_who_may_sleep_does() -> None:
    allowed = [module for module in modules("tests") if module.place in MAY_SLEEP | KEEP_TIME]
    assert {module.place for module in allowed} == MAY_SLEEP | KEEP_TIME
    assert [module.place for module in allowed if not list(bare_sleeps(module.tree))] == []


def test_a_bare_sleep_is_seen() -> None:
    source = "import asyncio\nasync def test():\n    await asyncio.sleep(0)\n    await asyncio.sleep(1)"
    assert list(bare_sleeps(ast.parse(source))) == [4]


def test_documents_hold_no_local_path_and_no_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in documents()
        for match in re.finditer(r"/(?:home|root|work|Users)/\S*|\S*(?:pypi|pythonhosted)\S*", path.read_text())
    ]
    assert found == []


def test_nothing_is_left_for_later() -> None:
    wanted = re.compile(r"\b(?:TODO|FIXME|XXX)\b|\bNotImplementedError\b")
    this = Path(__file__)
    found = [m.place for m in modules(*PRODUCT, "tests") if m.path != this and wanted.search(m.text)]
    assert found == []


@pytest.mark.parametrize(
    ("written", "place"),
    [
        (r"\\ud800", "orchestrix/saga/messages.py"),  # which text every database keeps
        (r"allow_nan=False, separators", "orchestrix/saga/messages.py"),  # the compact JSON writer
        (r"2 \*\* min\(failures", "orchestrix/lifecycle.py"),  # how long to wait after so many failures
        (r"routing_key=delivery\.queue", "orchestrix/broker/dead_letter.py"),  # what a dead letter looks like
    ],
)
def test_a_rule_stands_in_one_place(written: str, place: str) -> None:
    product = (module for module in modules(*PRODUCT) if not module.place.startswith("orchestrix/testing/"))
    assert [module.place for module in product if re.search(written, module.text)] == [place]


def time_and_chance(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that asks the clock or the dice."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if "*" in TIME_AND_CHANCE.get(a.name, ()))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            forbidden = TIME_AND_CHANCE.get(node.module or "", set())
            yield from ((node.lineno, a.name) for a in node.names if forbidden & {"*", a.name})
        elif isinstance(node, ast.Attribute) and node.attr in TIME_AND_CHANCE.get(_last_name(node.value), ()):
            yield node.lineno, ast.unparse(node)


def asks_a_question(module: Module) -> bool:
    """Whether the docstring begins with the question that the file answers, or says "Thing: what it does."."""
    first = (ast.get_docstring(module.tree) or "").partition("\n\n")[0]
    return re.match(r"[^.?!]*[^?]*\?|[A-Z0-9][^.:?!]*: [^?]*\.$", first, re.DOTALL) is not None


def class_names(tree: ast.Module) -> Iterator[str]:
    """The classes of a module."""
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def words(name: str) -> set[str]:
    """The words of a CamelCase or snake_case name, in lower case and without a plural's s."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def bare_sleeps(tree: ast.Module) -> Iterator[int]:
    """The lines that sleep for a time; `sleep(0)` only lets others run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) == "sleep":
            zero = node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not zero:
                yield node.lineno


def documents() -> Iterator[Path]:
    """What people read: the README and everything written beside it."""
    yield from ROOT.glob("*.md")
    for folder in ("docs", "deploy"):
        yield from (p for p in (ROOT / folder).rglob("*") if p.suffix in {".md", ".yml", ".yaml", ".toml"})


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_no_log_line_says_one_jobs() -> None:
    many = re.compile(r"%d (?:[a-z]+ )?(?!is\b|was\b|has\b)[a-z]+s\b")
    calls = [node for one in modules(*PRODUCT) for node in ast.walk(one.tree) if _logs(node)]
    texts = [first.value for call in calls for first in call.args[:2] if isinstance(first, ast.Constant)]
    assert len(texts) > 100
    assert [text for text in texts if many.search(str(text))] == []


@pytest.mark.parametrize("changes", [JobCanceller.cancel, JobRetrier.retry, DrainRequester.drain])
def test_who_asks_cannot_be_left_out(changes: Callable[..., object]) -> None:
    """A caller that forgets it would be `anonymous` in the audit."""
    assert inspect.signature(changes).parameters["actor"].default is inspect.Parameter.empty


def _logs(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether it is a call of a logger."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id.lower() in ("log", "logger")


def test_no_unit_test_asks_for_a_server_or_a_product_process() -> None:
    servers = r"""\b(?:rabbitmq|postgres|mariadb)_(?:url|server)(?:: |")|\bprivate_\w+: """
    dear = re.compile(servers + r"|\b(?:processes|programs): Processes")
    found = [path.name for path in (ROOT / "tests" / "unit").rglob("*.py") if dear.search(path.read_text())]
    assert found == []
