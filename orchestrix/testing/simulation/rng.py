"""RNG: the random numbers that a simulation draws; a seeded `random.Random` implements it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Rng(Protocol):
    """The part of `random.Random` that is used here."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def uniform(self, a: float, b: float) -> float:
        """A number in [a, b]."""

    def randrange(self, start: int, stop: int) -> int:
        """A whole number in [start, stop)."""

    def randbytes(self, n: int) -> bytes:
        """`n` bytes."""

    def choice(self, seq: Sequence[T]) -> T:
        """One of `seq`."""


class SeededRng:
    """A generator with the same sequence for a seed on every machine and every Python version."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._draws = 0

    def randbytes(self, n: int) -> bytes:
        self._draws += 1
        return hashlib.shake_128(f"{self._seed}:{self._draws}".encode()).digest(n)

    def random(self) -> float:
        return (int.from_bytes(self.randbytes(7), "big") >> 3) / 2**53

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.random()

    def randrange(self, start: int, stop: int) -> int:
        return start + int.from_bytes(self.randbytes(8), "big") % (stop - start)

    def choice(self, seq: Sequence[T]) -> T:
        return seq[self.randrange(0, len(seq))]
