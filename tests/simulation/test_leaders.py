"""Is there one leader a term, and always one in the end, over hundreds of bad days?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest

from orchestrix import clock
from orchestrix.broker.port import Delivery
from orchestrix.broker.topology import LEADER
from orchestrix.cluster import leadership
from orchestrix.domain import leases
from orchestrix.domain.leases import TokenHandling
from orchestrix.errors import Unavailable
from orchestrix.testing.broker.consumer import MemoryConsumer
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop, elapse
from tests.simulation import leaders, row, unrest

MOST_SHOWN = 5
PARTS = 2
WITHIN = 60

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.req("S0-2", "S0-7", "S0-10", "S0-72", "DC-7")
@pytest.mark.parametrize("part", range(PARTS))
def test_there_is_one_leader_a_term_and_always_one_in_the_end(scale: Callable[[int, int], int], part: int) -> None:
    seeds = scale(800, 10_000) // PARTS
    failed: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(part * seeds, (part + 1) * seeds):
        outcome = leaders.run(seed)
        seen.update(what for line in outcome.trace for what in EXPECTED if EXPECTED[what].search(line))
        if outcome.wrong and len(failed) < MOST_SHOWN:
            failed.append(str(outcome))
    assert not failed, "\n".join(failed)
    absent = sorted(EXPECTED.keys() - seen.keys())
    assert not absent, f"these bad days did not come, so that nothing is said about them: {absent}"


EXPECTED = {f"fault {kind}": re.compile(rf" fault .* s  {kind} +member") for kind in leaders.KINDS} | {
    "a process died in the middle": re.compile(r" dies at step \d"),
    "a leader without broker": re.compile(r" term \d+ \S+ alone"),
    "a leader whose lease ran out": re.compile("the lease expired"),
    "a refused renewal": re.compile("a newer term began"),
    "a newer token": re.compile("a newer election token arrived"),
    "a leader that gets its link back": re.compile(r"log .*elected leader: term \d+, mode broker"),
}


def test_a_seed_is_the_same_every_time() -> None:
    first, again, other = leaders.run(7), leaders.run(7), leaders.run(8)
    assert first.trace == again.trace
    assert first.digest != other.digest


def test_an_undisturbed_cluster_has_one_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrest.Nemesis, "_draw", lambda nemesis, dice: unrest.Fault(1.0, "nothing", 0, 1.0, 0.0))
    monkeypatch.setitem(leaders.KINDS, "nothing", lambda nemesis, fault, member: None)
    for seed in range(20):
        outcome = leaders.run(seed)
        assert not outcome.wrong
        ended = next(place for place, line in enumerate(outcome.trace) if "ends in good order" in line)
        assert len([line for line in outcome.trace[:ended] if " term " in line and "log" not in line]) == 1


def test_the_lease_counts_from_before_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a renewal is long on its way: the leader believes in it no longer than the row says."""
    asked: list[float] = []
    renew = row.RowSeat.renew

    async def slow(seat: row.RowSeat, fence: leases.Fence, mode: leases.LeaderMode) -> None:
        if len(asked) == 3:
            raise Unavailable("the database is away")
        asked.append(clock.monotonic())
        await renew(seat, fence, mode)
        await elapse(leaders.LEASE / 4)

    async def story() -> float:
        realm = leaders.Election(1, loop)
        elector = realm.members[0]
        elector.boot()
        while len(asked) < 3 or elector.fence is not None:
            await elapse(0.05)
        return loop.time()

    monkeypatch.setattr(row.RowSeat, "renew", slow)
    loop = VirtualLoop()
    with clock.use(VirtualClock(loop, Random(1))):
        led_until = loop.run_until_complete(story())
        loop.discard()
        loop.close()
    assert asked[-1] + leaders.LEASE <= led_until <= asked[-1] + leaders.LEASE + 0.1


# Would it find a mistake?


def term_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A leader's write does not look whether it still leads."""
    patch.setattr(row.RowSeat, "write", _unchecked)


async def _unchecked(seat: row.RowSeat, fence: leases.Fence) -> None:
    def work(lease: leases.Lease) -> tuple[Callable[[], None], None]:
        return (lambda: seat._row.written(fence)), None

    await seat._row.change(work)


def token_acknowledged_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A token is acknowledged as it comes."""
    receive = MemoryConsumer.receive

    async def early(consumer: MemoryConsumer, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        deliveries = await receive(consumer, limit, linger)
        await consumer.acknowledge([one for one in deliveries if one.queue == LEADER])
        return deliveries

    patch.setattr(MemoryConsumer, "receive", early)


def its_own_token_elects_it_again(patch: pytest.MonkeyPatch) -> None:
    """A leader that gets its own token begins a new term."""

    def eager(token: leases.LeaderToken, leading: leases.Fence | None) -> TokenHandling:
        found = leases.handling(token, leading)
        return TokenHandling.CAMPAIGN if found is TokenHandling.KEEP else found

    patch.setattr(leadership, "handling", eager)


def only_the_token_elects(patch: pytest.MonkeyPatch) -> None:
    """The lease is no way in."""
    patch.setattr(leadership, "campaign_delay_s", lambda waiting, lease: 1.0)


PLANTS: dict[Plant, str] = {
    term_not_checked: "I6: a write of",
    token_acknowledged_before_the_commit: "acknowledged a token before",
    its_own_token_elects_it_again: "L4",
    only_the_token_elects: "L3",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next((wrong for seed in range(WITHIN) if (wrong := leaders.run(seed).wrong)), [])
    assert any(PLANTS[plant] in one for one in found), f"within {WITHIN} seeds only {found}"
