"""Do sagas keep their promises over many bad weeks, each the same every time?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests.architecture.source import ROOT
from tests.simulation.nemesis import KINDS
from tests.simulation.saga import Simulation

MOST_SHOWN = 5
PARTS = 2


@pytest.mark.req("S3-40", "S3-41", "S3-48", "S3-52", "S3-53", "S3-54", "S3-55")
@pytest.mark.parametrize("part", range(PARTS))
def test_sagas_keep_their_promises(simulation: Simulation, scale: Callable[[int, int], int], part: int) -> None:
    seeds = scale(100, 10_000) // PARTS
    failed: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(part * seeds, (part + 1) * seeds):
        outcome = simulation.run(seed)
        seen.update(_exercised(outcome.trace))
        if outcome.wrong and len(failed) < MOST_SHOWN:
            failed.append(str(outcome))
    assert not failed, "\n".join(failed)
    absent = sorted(EXPECTED.keys() - seen.keys())
    assert not absent, f"these bad days did not come, so that nothing is said about them: {absent}"


def test_a_seed_is_the_same_every_time(simulation: Simulation) -> None:
    first, again, other = simulation.run(7), simulation.run(7), simulation.run(8)
    assert first.trace == again.trace
    assert first.digest != other.digest


def test_a_seed_is_the_same_in_another_process(simulation: Simulation) -> None:
    """Sets have another order there."""
    command = [sys.executable, "-m", "tests.simulation.saga", "--seed", "7", "--trace"]
    environ = {**os.environ, "PYTHONHASHSEED": "12345"}
    shown = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert simulation.run(7).digest in shown.stdout


def test_a_failing_seed_says_how_to_see_it_again(simulation: Simulation) -> None:
    outcome = simulation.run(3)
    outcome.wrong.append("something")
    assert "  something\n" in str(outcome)
    assert ".venv/bin/python -m tests.simulation.saga --seed 3 --trace" in str(outcome)


def _exercised(trace: Iterable[str]) -> set[str]:
    """What one trace has of what a simulation is for."""
    return {what for line in trace for what in EXPECTED if EXPECTED[what].search(line)}


EXPECTED = {f"fault {kind}": re.compile(rf" fault .* s  {kind}  +member") for kind in KINDS} | {
    "a process died in the middle": re.compile(r" dies at step \d"),
    "a command was worked on again": re.compile(r" works again on "),
    "the outcome of a commit was unknown": re.compile(r"the commit was not confirmed"),
    "an event came twice": re.compile(r" repeated evt\."),
    "a step failed": re.compile(r" published evt\.stepFailed "),
    "a start was asked for again": re.compile(r" answered .* (?:ExistingSaga|Replayed)"),
    "broker data lost": re.compile(r"broker is new or was reset"),
    "no queue took a message": re.compile(r" to (?:nobody|orchestrator\.unrouted)"),
}
