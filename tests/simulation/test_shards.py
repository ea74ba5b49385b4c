"""Does no shard have two owners, and each one in the end, over hundreds of bad days?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.shards import MODES, Simulation, mode_of
from tests.simulation.shards_plants import PLANTS, Plant

PARTS = 2
MOST_SHOWN = 5
WITHIN = 100
"""So many seeds of its mode a plant is given."""

EXPECTED = {
    **{
        f"a fault: {fault}": re.compile(rf"fault {fault}$")
        for fault in ("join", "stop", "announce", "kill", "restart", "double", "sleep", "doze", "count")
    },
    **{f"a node's fault: {fault}": re.compile(rf"fault {fault}$") for fault in ("crash", "freeze", "blind", "outage")},
    "a storm": re.compile("fault storm$"),
    "a node divides by another rule than the others": re.compile("divides by (even|minimal)$"),
    "a second client of S1 had the same id": re.compile("fault twin$"),
    "a client of S1 connected again": re.compile("fault reconnect$"),
    "a member was silent": re.compile("kind=.*INACTIVE"),
    "a member left": re.compile("kind=.*MemberChangeKind.LEFT"),
    "a share waited for a restart": re.compile("kind=.*AWAY"),
    "a member returned within its grace": re.compile("kind=.*RETURNED"),
    "a new process took the place of one that was gone": re.compile("kind=.*REPLACED"),
    "a generation was abandoned": re.compile("number=[2-9].*PENDING.*ABANDONED"),
    "a generation moved nothing": re.compile("ACTIVE.*moved=0"),
    "a generation moved shards": re.compile("ACTIVE.*moved=[1-9]"),
    "the shard count changed": re.compile("ACTIVE.*SHARD_COUNT"),
}


@pytest.mark.req("S1-4", "S1-5", "S1-21", "S1-36", "S4-18", "S4-19", "S4-24", "S4-41", "S4-42")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_shard_has_two_owners_and_each_one_in_the_end(scale: Callable[[int, int], int], part: int) -> None:
    seeds = scale(500, 10_000) // PARTS
    failed: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(part * seeds, (part + 1) * seeds):
        outcome = Simulation().run(seed)
        seen.update(what for line in outcome.trace for what in EXPECTED if EXPECTED[what].search(line))
        if outcome.wrong and len(failed) < MOST_SHOWN:
            failed.append(str(outcome))
    assert not failed, "\n".join(failed)
    absent = sorted(EXPECTED.keys() - seen.keys())
    assert not absent, f"these bad days did not come, so that nothing is said about them: {absent}"


def test_a_seed_is_the_same_every_time() -> None:
    first, again, other = Simulation().run(7), Simulation().run(7), Simulation().run(8)
    assert first.trace == again.trace
    assert first.digest != other.digest


# Would it find a mistake?


@pytest.mark.req("S4-41", "S4-42")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by chance: by one of the first seeds of the mode in which its moment is brought about."""
    plant(monkeypatch)
    found = PLANTS[plant]
    place = tuple(MODES).index(found.mode) if found.mode is not None else 0
    step = len(MODES) if found.mode is not None else 1
    wrong: list[str] = []
    for seed in range(place, place + step * WITHIN, step):
        assert found.mode in (None, mode_of(seed))
        wrong = Simulation().run(seed).wrong
        if any(words in one for one in wrong for words in found.words):
            return
    pytest.fail(f"within {WITHIN} seeds only {wrong}")
