"""Routing: which executors of a group get a job, by the group's strategy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import accumulate
from typing import Final

from orchestrix.errors import Invalid, RetryableError
from orchestrix.quantities import counted
from orchestrix.saga.job_targets import Strategy as Strategy

_SHOWN_KEY_CHARS: Final = 60
_SHOWN_ADDRESSES: Final = 20
"""Characters of a key, and addresses, that a sentence shows."""
_UNKNOWN_AGE: Final = datetime.min.replace(tzinfo=UTC)


class NoExecutors(RetryableError):
    """The group has no executor that could take the job. The same call can succeed once one has registered."""


class UnknownExecutor(Invalid):
    """The named address is none of the group's executors. The message says which there are."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An executor that may be picked, by its address, which no other candidate has.

    `load` is what it reported, `in_flight` how many attempts the cluster knows it to run. A weight below 0 counts as 0.
    A `suspect` gave no answer when it was last asked: it is passed over while there are others.
    """

    address: str
    first_seen: datetime | None = None
    weight: int = 1
    load: float | None = None
    in_flight: int = 0
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Pick:
    """What was picked, and why, in a short sentence.

    One address; with FAILOVER all, in the order to try them; with SHARDING_BROADCAST all, each getting the shard of its
    index.
    """

    addresses: tuple[str, ...]
    reason: str


def pick(
    strategy: Strategy,
    candidates: Sequence[Candidate],
    *,
    key: str,
    turn: int,
    chance: float,
    address: str | None = None,
) -> Pick:
    """The executors that get a job, whatever the order of `candidates`.

    `key` is what CONSISTENT_HASH keeps together, by default the job's id; `turn` the group's counter of ROUND_ROBIN;
    `chance` from 0 to below 1, drawn for each job; `address` the one that ADDRESS names. Those of which it is not
    known since when they are there count as the oldest.

    Raises `NoExecutors` where there are no candidates, `UnknownExecutor` where none has the named address.
    """
    return Picker(strategy, candidates).pick(key=key, turn=turn, chance=chance, address=address)


class Picker:
    """Picks again and again among the same candidates, which are sorted once. `varies` is false where all picks are
    the same.

    Raises `NoExecutors` where there are no candidates.
    """

    def __init__(self, strategy: Strategy, candidates: Sequence[Candidate]) -> None:
        if not candidates:
            raise NoExecutors("no executors available")
        self.varies = strategy in _VARYING
        self._pick = _PICKS[strategy]
        self._ordered = sorted(_without_suspects(strategy, candidates), key=_age)
        passed = len(candidates) - len(self._ordered)
        self._passed_over = f"; {passed} passed over: no answer" if passed else ""

    def pick(self, *, key: str, turn: int, chance: float, address: str | None = None) -> Pick:
        """The executors that get a job. Raises `UnknownExecutor`."""
        picked = self._pick(self._ordered, _Request(key, turn, chance, address))
        return replace(picked, reason=picked.reason + self._passed_over) if self._passed_over else picked


@dataclass(frozen=True, slots=True)
class _Request:
    key: str
    turn: int
    chance: float
    address: str | None


def _without_suspects(strategy: Strategy, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Those that are picked from. Where all are suspects, the fault is rather on the way to them: all are used.

    FAILOVER tries suspects last, and the one that is named by ADDRESS is used whatever it is.
    """
    if strategy in (Strategy.FAILOVER, Strategy.ADDRESS):
        return candidates
    return [one for one in candidates if not one.suspect] or candidates


def _age(one: Candidate) -> tuple[bool, datetime, str]:
    return one.first_seen is not None, one.first_seen or _UNKNOWN_AGE, one.address


def _first(ordered: Sequence[Candidate], _: _Request) -> Pick:
    return Pick((ordered[0].address,), f"first seen of {len(ordered)}")


def _last(ordered: Sequence[Candidate], _: _Request) -> Pick:
    return Pick((ordered[-1].address,), f"newest of {len(ordered)}")


def _round_robin(ordered: Sequence[Candidate], request: _Request) -> Pick:
    return Pick(
        (ordered[request.turn % len(ordered)].address,), f"turn {request.turn}, {counted(len(ordered), 'executor')}"
    )


def _random(ordered: Sequence[Candidate], request: _Request) -> Pick:
    return Pick((ordered[int(request.chance * len(ordered))].address,), f"random of {len(ordered)}")


def _consistent_hash(ordered: Sequence[Candidate], request: _Request) -> Pick:
    """Rendezvous hashing: each address has a score for the key, and the highest wins.

    So only the keys of an executor that leaves are moved, and one that joins takes its share from all the others.
    Weights do not count.
    """
    best = max(ordered, key=lambda one: (rendezvous_score(one.address, request.key), one.address))
    return Pick((best.address,), f"hash of key {request.key[:_SHOWN_KEY_CHARS]!r}")


def rendezvous_score(address: str, key: str) -> int:
    """64 well-distributed bits of an address, or of a node's id, for a key.

    BLAKE2b of the UTF-8 of the address, a NUL and the key, as a big-endian number.

    It must stay the same over processes and releases: nodes of two releases run side by side. Neither has a NUL, so
    no other pair has the same input; any key is taken, one with half a surrogate pair too.
    """
    pair = f"{address}\0{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(pair, digest_size=8).digest(), "big")


def _failover(ordered: Sequence[Candidate], _: _Request) -> Pick:
    found = sorted(ordered, key=lambda one: one.suspect)
    suspects = sum(one.suspect for one in found)
    last = f"; {suspects} without an answer last" if 0 < suspects < len(found) else ""
    return Pick(tuple(one.address for one in found), f"{len(found)} to try, first seen first{last}")


def _sharding_broadcast(ordered: Sequence[Candidate], _: _Request) -> Pick:
    return Pick(tuple(sorted(one.address for one in ordered)), f"all {len(ordered)}, a shard each")


def _least_loaded(ordered: Sequence[Candidate], _: _Request) -> Pick:
    least = min(ordered, key=lambda one: (one.in_flight, one.load or 0.0, one.address))
    return Pick(
        (least.address,), f"least loaded of {len(ordered)}: {least.in_flight} in flight, load {least.load or 0:g}"
    )


def _weighted(ordered: Sequence[Candidate], request: _Request) -> Pick:
    weights = [max(one.weight, 0) for one in ordered]
    if not any(weights):
        weights = [1] * len(ordered)
    cumulated = list(accumulate(weights))
    index = bisect_right(cumulated, request.chance * cumulated[-1])
    return Pick((ordered[index].address,), f"weight {weights[index]} of {cumulated[-1]}")


def _address(ordered: Sequence[Candidate], request: _Request) -> Pick:
    known = sorted(one.address for one in ordered)
    if request.address is None or request.address not in known:
        more = f" and {len(known) - _SHOWN_ADDRESSES} more" if len(known) > _SHOWN_ADDRESSES else ""
        named = f"no executor has the address {request.address}" if request.address else "no address was given"
        raise UnknownExecutor(f"{named}: use one of {', '.join(known[:_SHOWN_ADDRESSES])}{more}")
    return Pick((request.address,), "the address that was asked for")


_PICKS: Final[dict[Strategy, Callable[[Sequence[Candidate], _Request], Pick]]] = {
    Strategy.FIRST: _first,
    Strategy.LAST: _last,
    Strategy.ROUND_ROBIN: _round_robin,
    Strategy.RANDOM: _random,
    Strategy.CONSISTENT_HASH: _consistent_hash,
    Strategy.FAILOVER: _failover,
    Strategy.SHARDING_BROADCAST: _sharding_broadcast,
    Strategy.LEAST_LOADED: _least_loaded,
    Strategy.WEIGHTED: _weighted,
    Strategy.ADDRESS: _address,
}
_VARYING: Final = frozenset((Strategy.ROUND_ROBIN, Strategy.RANDOM, Strategy.CONSISTENT_HASH, Strategy.WEIGHTED))
"""The strategies that go by more than the candidates and the named address."""
