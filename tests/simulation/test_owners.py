"""Does every word of every job count once, whoever owns it, over many bad days?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.simulation import owners
from tests.simulation.house import STEERED
from tests.simulation.owners import BAD, Simulation
from tests.simulation.owners_plants import PLANTS, Plant

LATE = ("job dispatch", "schedules", "job rescuer", "orphan detector", "failure detector")
MOST_SHOWN = 5
PARTS = 2
WITHIN = 40
"""So many seeds are in each part of the run, and each rare moment is brought about in five of them. Of the planted
mistakes each is found by one of the first fifteen, so that twice as many leave room; a soak runs 10,000."""


@pytest.fixture(scope="module")
def owning() -> Iterator[Simulation]:
    """Runs seeds."""
    with owners.simulation() as runs:
        yield runs


@pytest.mark.req("S0-23", "S0-46", "S0-53", "S0-74", "S0-75", "S0-76")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_word_counts_once_and_every_job_comes_to_an_end(
    owning: Simulation, scale: Callable[[int, int], int], part: int
) -> None:
    seeds = scale(PARTS * WITHIN, 10_000) // PARTS
    failed: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(part * seeds, (part + 1) * seeds):
        outcome = owning.run(seed)
        seen.update(what for line in outcome.trace for what in EXPECTED if EXPECTED[what].search(line))
        if outcome.wrong and len(failed) < MOST_SHOWN:
            failed.append(str(outcome))
    assert not failed, "\n".join(failed)
    absent = sorted(EXPECTED.keys() - seen.keys())
    assert not absent, f"these bad days did not come, so that nothing is said about them: {absent}"


EXPECTED = {f"fault {kind}": re.compile(rf" fault .* s  {kind} +member") for kind in BAD} | {
    "a process died in the middle": re.compile(r" dies at step \d"),
    "jobs were handed off": re.compile(r"handed off \d+ jobs?"),
    "an owner was gone": re.compile("needs? a new owner"),
    **{f"{name} of a term that is over": re.compile(rf" steered: {name} goes on after term") for name in LATE},
    "a refused write": re.compile("nothing was written"),
    "jobs that were given away and came back": re.compile(r" steered: \S+ has \d+ jobs again"),
    "a node that drains, and nobody takes its jobs": re.compile(r" steered: \S+ drains and has"),
    "an attempt was lost": re.compile(r"ended \(worker silent\)"),
    "an attempt took too long": re.compile(r"ended \(timed out\)"),
    "a job was cancelled": re.compile(r" is CANCELLED"),
    "a job succeeded": re.compile(r" is SUCCEEDED"),
}


def test_a_seed_is_the_same_every_time(owning: Simulation) -> None:
    first, again, other = owning.run(7), owning.run(7), owning.run(8)
    assert first.trace == again.trace
    assert first.digest != other.digest


# Would it find a mistake?


@pytest.mark.req("S0-10", "S0-41", "S0-42", "S0-56")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant: Plant, owning: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by chance: by one of the first few seeds in which its moment is brought about."""
    plant(monkeypatch)
    words, steered = PLANTS[plant].words, PLANTS[plant].steered
    wrong: list[str] = []
    for seed in [seed for seed in range(WITHIN) if steered in (None, STEERED[seed % len(STEERED)])]:
        wrong = owning.run(seed, words).wrong
        if any(words in one for one in wrong):
            return
    pytest.fail(f"within {WITHIN} seeds only {wrong}")
