"""Versions in the simulation: does each instance keep to its own, while every process has the code of others?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.simulation.saga import Simulation
from tests.simulation.versions import MixedWorld

MOST_SHOWN: Final = 5
EXPECTED: Final = {
    **{f"a node with version {one}": re.compile(rf" node-\d has version {one}") for one in (1, 2, 3, "none")},
    **{f"a worker with version {one}": re.compile(rf" worker-\d has version {one}") for one in (1, 2, 3)},
    "an event was held": re.compile(r" held evt\."),
    "a step of the second version alone": re.compile(r" published evt\.weigh\.done "),
    "an event of the third version alone": re.compile(r" published evt\.held "),
    "an undo of the second version alone": re.compile(r" published evt\.paidBack "),
    "a process died in the middle": re.compile(r" dies at step \d"),
}


def test_each_instance_keeps_to_its_version(simulation: Simulation, scale: Callable[[int, int], int]) -> None:
    failed: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(scale(25, 500)):
        outcome = simulation.run(seed, MixedWorld)
        seen.update({what for line in outcome.trace for what in EXPECTED if EXPECTED[what].search(line)})
        if outcome.wrong and len(failed) < MOST_SHOWN:
            failed.append(str(outcome))
    assert not failed, "\n".join(failed)
    absent = sorted(EXPECTED.keys() - seen.keys())
    assert not absent, f"these bad days did not come, so that nothing is said about them: {absent}"


def test_a_seed_is_the_same_every_time(simulation: Simulation) -> None:
    first, again = simulation.run(7, MixedWorld), simulation.run(7, MixedWorld)
    assert first.trace == again.trace
    assert "-m tests.simulation.versions --seed 7 --trace" in str(first)
