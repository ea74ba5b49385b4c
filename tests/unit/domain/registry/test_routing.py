"""Which executors does each strategy pick, how fair is it, and what moves when one joins or leaves?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.registry.routing import Candidate, NoExecutors, Pick, Picker, Strategy, UnknownExecutor, pick
from orchestrix.errors import PermanentError, RetryableError

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = 10_000


def named(host: str, seen: float | None = 0, **more: float) -> Candidate:
    first_seen = None if seen is None else START + timedelta(seconds=seen)
    return Candidate(f"http://{host}:9999", first_seen, **more)  # type: ignore[arg-type]  # ints where ints are due


FIVE = tuple(named(f"10.0.0.{n}") for n in range(1, 6))
OLD, NEW, UNKNOWN = named("b", 0), named("a", 10), named("c", None)
THREE = (NEW, OLD, UNKNOWN)


def picked(
    strategy: Strategy,
    candidates: Sequence[Candidate] = FIVE,
    *,
    key: str = "1",
    turn: int = 0,
    chance: float = 0.0,
    address: str | None = None,
) -> Pick:
    return pick(strategy, candidates, key=key, turn=turn, chance=chance, address=address)


def hosts(found: Pick) -> list[str]:
    return [address.removeprefix("http://").removesuffix(":9999") for address in found.addresses]


@pytest.mark.req("S2-36")
@pytest.mark.parametrize("strategy", Strategy)
def test_without_executors_nothing_can_be_picked(strategy: Strategy) -> None:
    with pytest.raises(NoExecutors, match=r"^no executors available$") as caught:
        picked(strategy, ())
    assert isinstance(caught.value, RetryableError)


@pytest.mark.req("S2-37")
def test_first_is_who_was_there_first() -> None:
    assert hosts(picked(Strategy.FIRST, (NEW, OLD))) == ["b"]
    assert hosts(picked(Strategy.FIRST, THREE)) == ["c"], "nobody knows since when: it counts as the oldest"
    assert hosts(picked(Strategy.FIRST, (named("b"), named("a")))) == ["a"], "the address decides between equals"


def test_last_is_who_came_last() -> None:
    assert hosts(picked(Strategy.LAST, THREE)) == ["a"]
    assert hosts(picked(Strategy.LAST, (named("b"), named("a")))) == ["b"]


@pytest.mark.req("S2-38")
def test_round_robin_takes_one_after_the_other_by_age() -> None:
    turns = [hosts(picked(Strategy.ROUND_ROBIN, THREE, turn=turn)) for turn in range(5)]
    assert turns == [["c"], ["b"], ["a"], ["c"], ["b"]]


def test_failover_gives_all_in_the_order_to_try() -> None:
    assert hosts(picked(Strategy.FAILOVER, THREE)) == ["c", "b", "a"]


def test_a_broadcast_gives_each_executor_the_shard_of_its_place() -> None:
    assert hosts(picked(Strategy.SHARDING_BROADCAST, THREE)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("candidates", "least"),
    [
        ((named("a", in_flight=2, load=0.1), named("b", in_flight=1, load=9.0)), "b"),
        ((named("a", in_flight=1, load=0.5), named("b", in_flight=1, load=0.4)), "b"),
        ((named("a", in_flight=1, load=0.5), named("b", in_flight=1)), "b"),
        ((named("b"), named("a", 99)), "a"),
    ],
)
def test_least_loaded_goes_by_attempts_then_load_then_address(candidates: Sequence[Candidate], least: str) -> None:
    assert hosts(picked(Strategy.LEAST_LOADED, candidates)) == [least]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((1, 3, 0), {"a": 2500, "b": 7500}),
        ((0, 0, 4), {"c": KEYS}),
        ((-5, 1, 1), {"b": 5000, "c": 5000}),
        ((0, 0), {"a": 5000, "b": 5000}),
    ],
)
def test_weights_are_shares_and_none_means_never(weights: tuple[int, ...], expected: dict[str, int]) -> None:
    executors = [named(host, weight=weight) for host, weight in zip("abc", weights, strict=False)]
    counts = Counter(hosts(picked(Strategy.WEIGHTED, executors, chance=n / KEYS))[0] for n in range(KEYS))
    assert counts == expected


def test_the_named_address_is_taken() -> None:
    assert hosts(picked(Strategy.ADDRESS, THREE, address="http://b:9999")) == ["b"]


@pytest.mark.parametrize("strategy", Strategy)
def test_many_picks_among_the_same_candidates_are_as_single_ones(strategy: Strategy) -> None:
    several = Picker(strategy, THREE)
    asked = [{"key": str(n), "turn": n, "chance": noise(n), "address": "http://a:9999"} for n in range(100)]
    found = [several.pick(**one) for one in asked]  # type: ignore[arg-type]  # each has its type
    assert found == [pick(strategy, THREE, **one) for one in asked]  # type: ignore[arg-type]
    assert several.varies == (len({*found}) > 1)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("http://d:9999", "no executor has the address http://d:9999: use one of http://a:9999, http://b:9999"),
        (None, "no address was given: use one of http://a:9999, http://b:9999"),
    ],
)
def test_an_address_that_no_executor_has_is_refused_with_those_there_are(address: str | None, sentence: str) -> None:
    with pytest.raises(UnknownExecutor) as caught:
        picked(Strategy.ADDRESS, (NEW, OLD), address=address)
    assert str(caught.value) == sentence
    assert isinstance(caught.value, PermanentError)


def test_a_sentence_does_not_list_hundreds_of_addresses() -> None:
    with pytest.raises(UnknownExecutor, match=r"http://119:9999 and 180 more$"):
        picked(Strategy.ADDRESS, [named(str(n)) for n in range(100, 300)], address="x")


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Strategy.FIRST, "first seen of 3"),
        (Strategy.LAST, "newest of 3"),
        (Strategy.ROUND_ROBIN, "turn 7, 3 executors"),
        (Strategy.RANDOM, "random of 3"),
        (Strategy.CONSISTENT_HASH, "hash of key 'shop-1'"),
        (Strategy.FAILOVER, "3 to try, first seen first"),
        (Strategy.SHARDING_BROADCAST, "all 3, a shard each"),
        (Strategy.LEAST_LOADED, "least loaded of 3: 0 in flight, load 0"),
        (Strategy.WEIGHTED, "weight 1 of 3"),
        (Strategy.ADDRESS, "the address that was asked for"),
    ],
)
def test_the_reason_is_a_short_sentence(strategy: Strategy, reason: str) -> None:
    assert picked(strategy, THREE, key="shop-1", turn=7, chance=0.5, address="http://a:9999").reason == reason


@given(
    st.permutations(THREE),
    st.sampled_from(Strategy),
    st.text(),
    st.integers(0, 2**63),
    st.floats(0, 1, exclude_max=True),
)
def test_the_order_of_the_candidates_does_not_matter(
    order: list[Candidate], strategy: Strategy, key: str, turn: int, chance: float
) -> None:
    def of(candidates: Sequence[Candidate]) -> Pick:
        return picked(strategy, candidates, key=key, turn=turn, chance=chance, address="http://a:9999")

    assert of(order) == of(THREE)
    assert set(of(order).addresses) <= {one.address for one in THREE}


@pytest.mark.parametrize("strategy", [Strategy.RANDOM, Strategy.WEIGHTED])
@pytest.mark.parametrize("chance", [0.0, 1 - 2**-53])
def test_the_ends_of_chance_are_somebody(strategy: Strategy, chance: float) -> None:
    for many in range(1, 60):
        executors = [named(f"{n:02}", weight=n) for n in range(1, many + 1)]
        expected = "01" if chance == 0 else f"{many:02}"
        assert hosts(picked(strategy, executors, chance=chance)) == [expected]


# How fair: 10,000 jobs, 5 executors, so 2,000 each where it is exact. `noise` is a fixed sequence from 0 to below 1.


def noise(n: int) -> float:
    return int.from_bytes(blake2b(n.to_bytes(4), digest_size=6).digest()) / 2**48


def counts(strategy: Strategy) -> Counter[str]:
    return Counter(
        address for n in range(KEYS) for address in picked(strategy, key=str(n), turn=n, chance=noise(n)).addresses[:1]
    )


@pytest.mark.parametrize(
    ("strategy", "least", "most"),
    [
        (Strategy.ROUND_ROBIN, 2000, 2000),
        (Strategy.RANDOM, 1880, 2120),  # three standard deviations (of 40)
        (Strategy.WEIGHTED, 1880, 2120),
        (Strategy.CONSISTENT_HASH, 1880, 2120),
    ],
)
@pytest.mark.req("S2-38", "S2-39", "S2-40")
def test_each_of_five_gets_its_share_of_ten_thousand(strategy: Strategy, least: int, most: int) -> None:
    found = counts(strategy)
    assert set(found) == {one.address for one in FIVE}
    assert all(least <= count <= most for count in found.values()), found


@pytest.mark.parametrize("strategy", [Strategy.FIRST, Strategy.LAST, Strategy.FAILOVER, Strategy.ADDRESS])
def test_a_fixed_choice_is_always_the_same(strategy: Strategy) -> None:
    executors = (named("a", 0), named("b", 1))
    found = {
        picked(strategy, executors, key=str(n), turn=n, chance=noise(n), address="http://a:9999").addresses
        for n in range(100)
    }
    assert len(found) == 1


def test_least_loaded_fills_all_alike() -> None:
    load = {one.address: 0 for one in FIVE}
    for _ in range(KEYS):
        (address,) = picked(
            Strategy.LEAST_LOADED, [Candidate(one, in_flight=many) for one, many in load.items()]
        ).addresses
        load[address] += 1
    assert set(load.values()) == {KEYS // 5}


def test_neighbouring_weights_get_their_shares() -> None:
    executors = [named(str(n), weight=n) for n in range(1, 6)]
    found = Counter(hosts(picked(Strategy.WEIGHTED, executors, chance=noise(n)))[0] for n in range(KEYS))
    assert all(abs(found[str(n)] - KEYS * n / 15) <= 150 for n in range(1, 6)), found


# What moves with CONSISTENT_HASH.


@cache
def hashed(executors: tuple[Candidate, ...]) -> list[str]:
    return [picked(Strategy.CONSISTENT_HASH, executors, key=f"job-{n}").addresses[0] for n in range(KEYS)]


@pytest.mark.req("S2-40")
@pytest.mark.parametrize("leaves", range(5))
def test_only_the_keys_of_who_leaves_are_moved_and_to_all_others(leaves: int) -> None:
    left = [one for one in FIVE if one is not FIVE[leaves]]
    pairs = list(zip(hashed(FIVE), hashed((*left,)), strict=True))
    moved = [(before, after) for before, after in pairs if before != after]
    assert {before for before, _ in moved} == {FIVE[leaves].address}
    shares = Counter(after for _, after in moved)
    assert all(abs(shares[one.address] - KEYS / 20) <= 75 for one in left), shares


@pytest.mark.req("S2-40")
def test_who_joins_takes_a_sixth_and_nothing_moves_between_the_others() -> None:
    joins = named("10.0.0.6", 99)
    pairs = list(zip(hashed(FIVE), hashed((*FIVE, joins)), strict=True))
    moved = [after for before, after in pairs if before != after]
    assert set(moved) == {joins.address}
    assert abs(len(moved) - KEYS / 6) <= 0.01 * KEYS, len(moved)


@pytest.mark.req("S2-40")
def test_nothing_but_key_and_addresses_decides() -> None:
    changed = [Candidate(one.address, None, 100, 5.0, n) for n, one in enumerate(FIVE)]
    assert hashed((*changed,)) == hashed(FIVE)


@pytest.mark.parametrize(
    ("key", "host"),
    [("1", "10.0.0.1"), ("2", "10.0.0.1"), ("3", "10.0.0.4"), ("shop-1", "10.0.0.1"), ("\ud800é", "10.0.0.5")],
)
def test_the_hash_is_the_same_in_every_process_and_release(key: str, host: str) -> None:
    assert hosts(picked(Strategy.CONSISTENT_HASH, key=key)) == [host]


def test_a_long_key_is_cut_in_the_reason_alone() -> None:
    assert picked(Strategy.CONSISTENT_HASH, key="x" * 999).reason == f"hash of key '{'x' * 60}'"


def with_suspects(count: int, suspects: Collection[int]) -> list[Candidate]:
    return [replace(named(f"10.0.0.{place}", place), suspect=place in suspects) for place in range(count)]


@pytest.mark.parametrize("strategy", [one for one in Strategy if one not in (Strategy.ADDRESS, Strategy.FAILOVER)])
def test_a_suspect_is_passed_over_while_there_are_others(strategy: Strategy) -> None:
    found = with_suspects(4, {0, 3})
    for turn in range(20):
        one = picked(strategy, found, key=f"k-{turn}", turn=turn, chance=turn / 20)
        assert set(one.addresses) <= {found[1].address, found[2].address}
        assert one.reason.endswith("; 2 passed over: no answer")


@pytest.mark.parametrize("strategy", [one for one in Strategy if one is not Strategy.ADDRESS])
def test_where_all_are_suspects_they_are_used(strategy: Strategy) -> None:
    healthy, suspects = with_suspects(3, ()), with_suspects(3, range(3))
    for turn in range(20):
        first, second = (
            picked(strategy, found, key=f"k-{turn}", turn=turn, chance=turn / 20) for found in (suspects, healthy)
        )
        assert first == second


def test_failover_tries_suspects_last() -> None:
    found = with_suspects(4, {0, 2})
    one = picked(Strategy.FAILOVER, found)
    assert one.addresses == tuple(found[place].address for place in (1, 3, 0, 2))
    assert one.reason == "4 to try, first seen first; 2 without an answer last"


def test_a_suspect_that_is_named_is_used() -> None:
    found = with_suspects(2, {0})
    assert picked(Strategy.ADDRESS, found, address=found[0].address).addresses == (found[0].address,)
