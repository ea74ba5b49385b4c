"""Does `worker-check` pass who follows the contract, and name each fault of who does not?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.documents import CONTRACTS, README, ROOT, block
from tests.processes import Processes
from tests.servers.tools import NODE_JS, NPM

WORKER: Final = Path(__file__).with_name("checked_worker.py")
SERVICE: Final = {"ORCHESTRIX_CONFIG": str(ROOT / "orchestrix.toml")}
FAULTS: Final = {
    "echoes nothing": {"causationId"},
    "echoes the latest": {"stale command"},
    "fails duplicates": {"duplicate"},
    "undoes by app": {"undo by effectKey"},
    "undoes nothing": {"undo by effectKey"},
    "is sure": {"redelivery"},
    "dies of poison": {"poison"},
    "drops poison": {"poison"},
    "refuses new fields": {"unknown fields"},
    "is silent": {"slow work"},
    "acknowledges first": {"acknowledgement"},
    "hangs at the end": {"graceful stop"},
}
"""The faults of a worker, and the rules that name each."""


def verdicts(processes: Processes, *arguments: str) -> tuple[int, dict[str, tuple[str, str]], str]:
    """The exit code, the verdicts by rule, and what was said besides."""
    done = processes.run("worker-check", "cmd.registerApp", *arguments, "-o", "json", env=SERVICE, timeout=120)
    assert done.stdout, done.stderr
    items = json.loads(done.stdout)["items"]
    return done.returncode, {one["rule"]: (one["status"], one["detail"]) for one in items}, done.stderr


def checked(processes: Processes, fault: str = "") -> tuple[int, dict[str, tuple[str, str]]]:
    """The worker with that fault."""
    code, found, _ = verdicts(
        processes,
        *("--start", f"{sys.executable} {WORKER} {{url}} '{fault}'"),
        *("--effect", "test -e made/{effectKey}", "--failing", '{"data":{"fail":true}}'),
        *("--slow", '{"data":{"seconds":1.2}}', "--timeout", "3", "--stop-timeout", "4"),
    )
    return code, found


def test_who_follows_the_contract_passes(processes: Processes) -> None:
    code, found = checked(processes)
    assert (code, {status for status, _ in found.values()}) == (0, {"ok"}), found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(processes: Processes, fault: str) -> None:
    code, found = checked(processes, fault)
    named = {rule for rule, (status, _) in found.items() if status == "fail"}
    assert code == 1
    assert named & FAULTS[fault] == FAULTS[fault], found
    if fault not in ("echoes nothing", "echoes the latest", "acknowledges first"):  # these break more than one rule
        assert named == FAULTS[fault], found


def test_what_only_an_option_can_show_is_skipped_without_it(processes: Processes) -> None:
    line = f"{sys.executable} {WORKER} {{url}} 'drops what is undone'"
    code, found, _ = verdicts(processes, "--start", line, "--timeout", "3", "--stop-timeout", "4")
    skipped = {rule: detail for rule, (status, detail) in found.items() if status == "skip"}
    options = {
        "redelivery": "give --failing",
        "stale command": "give --effect",
        "undo by effectKey": "give --effect",
        "slow work": "give --slow",
    }
    assert (code, skipped.keys()) == (0, options.keys()), found
    assert all(option in skipped[rule] for rule, option in options.items()), skipped
    assert {status for rule, (status, _) in found.items() if rule not in options} == {"ok"}, found


@pytest.mark.parametrize(("fault", "rule"), [("is sure", "redelivery"), ("undoes nothing", "undo by effectKey")])
def test_a_fault_that_only_an_option_shows_is_no_ok_without_it(processes: Processes, fault: str, rule: str) -> None:
    line = f"{sys.executable} {WORKER} {{url}} '{fault}'"
    _, found, _ = verdicts(processes, "--start", line, "--timeout", "3", "--stop-timeout", "4")
    assert found[rule][0] == "skip", found


def test_who_may_drop_what_is_undone_passes(processes: Processes) -> None:
    code, found = checked(processes, "drops what is undone")
    assert (code, {status for status, _ in found.values()}) == (0, {"ok"}), found


def test_the_readmes_worker_passes(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "registrar.py").write_text(block(README, "python", "import pika"))
    code, found, said = verdicts(
        processes,
        *("--start", f"{sys.executable} registrar.py {{url}}", "--effect", "test -e registered/{effectKey}"),
        *("--failing", '{"effectKey":"no/such"}', "--timeout", "3"),
    )
    assert (code, "Traceback" in said) == (0, False), said
    assert {rule for rule, (status, _) in found.items() if status != "ok"} == {"slow work"}, found


def test_the_node_example_passes(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "registrar.js").write_text(block(CONTRACTS, "js", "amqplib"))
    installed = NPM.run("install", "--no-audit", "--no-fund", "amqplib", cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    code, found, said = verdicts(
        processes,
        *("--start", f"{NODE_JS.find()} registrar.js {{url}}", "--effect", "test -e registered/{effectKey}"),
        *("--slow", '{"data":{"pauseMs":1500}}', "--failing", '{"effectKey":"no/such/folder"}', "--timeout", "4"),
    )
    assert (code, {status for status, _ in found.values()}) == (0, {"ok"}), said


def test_who_does_not_come_or_answers_nothing(processes: Processes) -> None:
    nothing = processes.run(
        "worker-check", "cmd.registerApp", "--start", "sh -c 'exit 7' {url}", "--timeout", "1", env=SERVICE, timeout=60
    )
    assert nothing.returncode == 2
    assert "error: no worker has come to read cmd.registerApp at amqp://" in nothing.stderr
    assert "/: what --start began has ended by itself" in nothing.stderr
    assert " with exit code 7; see what it printed above" in nothing.stderr
    assert "Traceback" not in nothing.stderr


def test_a_worker_that_cannot_be_started_again_ends_the_check(processes: Processes, tmp_path: Path) -> None:
    once = tmp_path / "once.sh"  # it is gone when it has ended
    once.write_text(f"#!/bin/sh\nrm '{once}'\nexec {sys.executable} {WORKER} \"$1\" 'dies of poison'\n")
    once.chmod(0o755)
    ended = processes.run(
        "worker-check", "cmd.registerApp", "--start", f"{once} {{url}}", "--timeout", "2", env=SERVICE, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    sentence = f"error: --start: {once} cannot be started: No such file or directory: what --start began has ended"
    assert sentence in ended.stderr
    assert "never retrieved" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["cmd.registerAp"], 3, "no saga has the command cmd.registerAp: did you mean cmd.registerApp?"),
        (["cmd.unregisterApp"], 2, "cmd.unregisterApp undoes registerApp: check cmd.registerApp"),
        (["cmd.registerApp", "--start", "python x.py"], 2, "--start: write {url} where"),
        (["cmd.registerApp", "--start", "no-such-program {url}"], 2, "--start: no-such-program cannot be started"),
        (["cmd.registerApp", "--effect", "test -e x"], 2, "--effect: write {effectKey} where"),
        (["cmd.registerApp", "--failing", "x"], 2, "--failing is not JSON"),
        (["cmd.registerApp", "--timeout", "0"], 2, "is no time"),
    ],
)
def test_what_cannot_be_checked_is_a_sentence(processes: Processes, arguments: list[str], code: int, said: str) -> None:
    done = processes.run("worker-check", *arguments, env=SERVICE, timeout=60)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
