"""Stream limits: how many long-polls and event streams one client may have open."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from orchestrix.api.problems import Problem

RETRY_S: Final = 5


class Streams:
    """Counts what clients have open: by the name of their token, else by their address."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def admit(self, client: str) -> None:
        """Raises `Problem` 429 where `client` has as many as it may."""
        if self._open[client] >= self._limit:
            raise Problem(
                "too_many_requests",
                f"{self._limit} long-polls and event streams of yours are open, which are the most: end one first.",
                headers={"Retry-After": str(RETRY_S)},
            )

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """One more for as long as the block lasts. Raises as `admit`."""
        self.admit(client)
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    async def counted(self, client: str, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """`events`, which count from the first one on: an answer that never begins takes no place."""
        self._open[client] += 1
        try:
            async for event in events:
                yield event
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]
