"""Does every word of every job count once, whoever owns it, over hundreds of bad days?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from app.broker.port import Delivery
from app.domain import jobs as rules
from app.domain.jobs import Job
from app.jobs import taking
from app.jobs.events import Heard, JobEvents
from app.testing.memory_consumer import MemoryConsumer
from tests.simulation import owners
from tests.simulation.owners import BAD, Simulation

MOST_SHOWN = 5
PARTS = 4
WITHIN = 40

Plant = Callable[[pytest.MonkeyPatch], None]


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
    seeds = scale(200, 10_000) // PARTS
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
    "jobs were handed over": re.compile(r"jobs were handed over: \d"),
    "an owner was gone": re.compile("need another owner"),
    "an attempt was lost": re.compile("its worker was not heard any more"),
    "an attempt took too long": re.compile("its time is over"),
    "a job was cancelled": re.compile(r" is CANCELLED"),
    "a job succeeded": re.compile(r" is SUCCEEDED"),
}


def test_a_seed_is_the_same_every_time(owning: Simulation) -> None:
    first, again, other = owning.run(7), owning.run(7), owning.run(8)
    assert first.trace == again.trace
    assert first.digest != other.digest


# Would it find a mistake?


def acknowledged_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """What a worker says is acknowledged as it comes."""
    receive = MemoryConsumer.receive

    async def early(consumer: MemoryConsumer, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        deliveries = await receive(consumer, limit, linger)
        await consumer.acknowledge([one for one in deliveries if one.queue.endswith((".status", ".logs"))])
        return deliveries

    patch.setattr(MemoryConsumer, "receive", early)


def the_epoch_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Whoever reads what a worker says writes it."""

    def anybody(events: JobEvents, job: Job | None, heard: Heard) -> bool:
        return job is not None

    patch.setattr(JobEvents, "_is_mine", anybody)


def ownership_without_compare_and_set(patch: pytest.MonkeyPatch) -> None:
    """A node that hears that a job needs an owner takes it, whoever has it by then."""
    patch.setattr(taking, "_is_free", lambda job: bool(job.channels))
    patch.setattr(taking, "_as_offered", lambda job, offer: True)


def orphans_are_left(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks for jobs whose owner is gone."""

    async def none(tx: object, seconds: float, limit: int) -> list[Job]:
        return []

    patch.setattr("app.persistence.jobs.orphans", none)


def statuses_are_applied_again(patch: pytest.MonkeyPatch) -> None:
    """A status that comes a second time counts a second time."""
    reported = rules.reported
    patch.setattr(rules, "reported", lambda job, *rest: reported(replace(job, seq=min(job.seq, 1)), *rest))


PLANTS: dict[Plant, str] = {
    acknowledged_before_the_commit: "was acknowledged before its commit",
    the_epoch_is_not_asked: "I8",
    ownership_without_compare_and_set: "which had not offered it",
    orphans_are_left: "I2",
    statuses_are_applied_again: "was applied after",
}
"""Each plant, and the words by which the witness names what is wrong."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant: Plant, owning: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next((wrong for seed in range(WITHIN) if (wrong := owning.run(seed).wrong)), [])
    assert any(PLANTS[plant] in one for one in found), f"within {WITHIN} seeds only {found}"
