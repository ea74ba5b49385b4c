"""How does each test get a fresh virtual host or database without paying for a call to the server?"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence


class Pool:
    """Hands out names of fresh things. They are made in batches, and the used ones are dropped on the same occasion.

    `change(add, drop)` does the work on the server. Small batches: what is used and not yet dropped lives on there.
    """

    def __init__(self, change: Callable[[Sequence[str], Sequence[str]], None], *, batch: int) -> None:
        self._change = change
        self._batch = batch
        self._prefix = f"test_{secrets.token_hex(4)}"  # other runs may use the same server
        self._count = 0
        self._fresh: list[str] = []
        self._used: list[str] = []

    def take(self) -> str:
        """A fresh name."""
        if not self._fresh:
            self._refill()
        return self._fresh.pop()

    def give_back(self, name: str) -> None:
        """The test is over; the thing goes with the next batch or at `close`."""
        self._used.append(name)

    def close(self) -> None:
        """Drops everything: the server may live on."""
        leftovers = self._used + self._fresh
        self._used, self._fresh = [], []
        if leftovers:
            self._change([], leftovers)

    def _refill(self) -> None:
        new = [f"{self._prefix}_{self._count + n}" for n in range(self._batch)]
        self._count += self._batch
        used, self._used = self._used, []
        self._change(new, used)
        self._fresh = new[::-1]
