"""What does a simulation ask of its dice?  A seeded `random.Random` has it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Dice(Protocol):
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
