"""Waiting messages: what clients of a socket have sent and is not handled yet, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeAlias

from orchestrix.lifecycle import WakeSignal

MOST_WAITING_BYTES: Final = 16 * 1024 * 1024
OVERHEAD_BYTES: Final = 300
"""What a waiting message costs besides its own bytes."""

ClientMessage: TypeAlias = tuple[bytes, bytes]
"""The identity of a client, and what it has sent."""


class WaitingMessages:
    """In the order in which each was sent last. One that is sent again, as most heartbeats are, takes the place of the
    same one before: while nothing can be handled, a client's old heartbeats do not pile up.
    """

    def __init__(self, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._messages: dict[ClientMessage, None] = {}
        self._arrived = WakeSignal()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: ClientMessage) -> bool:
        """Whether there is room for it."""
        if message in self._messages:
            del self._messages[message]
        elif self._bytes + _size(message) > self._most_bytes:
            return False
        else:
            self._bytes += _size(message)
        self._messages[message] = None
        self._arrived.set()
        return True

    async def first(self, count: int) -> list[ClientMessage]:
        """Waits for some; at most so many, which stay here until they are removed."""
        while not self._messages:
            await self._arrived.wait(None)
        return list(islice(self._messages, count))

    def remove(self, messages: Iterable[ClientMessage]) -> None:
        """These are handled."""
        for one in messages:
            if one in self._messages:
                del self._messages[one]
                self._bytes -= _size(one)


def _size(message: ClientMessage) -> int:
    return sum(map(len, message)) + OVERHEAD_BYTES
