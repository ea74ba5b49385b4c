"""How does the bench tell its child processes what to do, and hear what came of it?"""

from __future__ import annotations

import json
import os
import socket
from typing import IO, Any, Final, Self

PORT: Final = "BENCH_PORT"
Order = dict[str, Any]
Answer = dict[str, Any]


class ChildDied(Exception):
    """A process of the bench has ended; its log says why."""


class Orders:
    """The parent's end: a listening socket; the child learns the port from its environment."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._stream: IO[str] | None = None

    @property
    def env(self) -> dict[str, str]:
        """What the child's environment needs."""
        return {PORT: str(self._listening.getsockname()[1])}

    def greet(self, timeout: float) -> Answer:
        """Waits until the child is ready; returns its first words. Raises `ChildDied`."""
        self._listening.settimeout(timeout)
        try:
            link, _ = self._listening.accept()
        except TimeoutError as late:
            raise ChildDied(f"a process of the bench was not ready within {timeout:g} s") from late
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = link.makefile("rw", buffering=1)
        link.close()  # with the stream
        return self._hear()

    def give(self, do: str, **details: Any) -> None:
        """Gives an order without waiting."""
        assert self._stream is not None
        self._stream.write(json.dumps({"do": do, **details}) + "\n")

    def hear(self) -> Answer:
        """Waits for the answer to the oldest open order. Raises `ChildDied`."""
        return self._hear()

    def ask(self, do: str, **details: Any) -> Answer:
        """Gives an order and waits for its answer."""
        self.give(do, **details)
        return self.hear()

    def close(self) -> None:
        """Hangs up; the child ends."""
        if self._stream is not None:
            self._stream.close()
        self._listening.close()

    def _hear(self) -> Answer:
        assert self._stream is not None
        line = self._stream.readline()
        if not line:
            raise ChildDied("a process of the bench has ended before its work was done")
        answer: Answer = json.loads(line)
        return answer


class Child:
    """The child's end, for children without an event loop. Needs the standard library alone."""

    def __init__(self) -> None:
        link = socket.create_connection(("127.0.0.1", int(os.environ[PORT])))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = link.makefile("rw", buffering=1)
        self.answer({})

    def answer(self, what: Answer) -> None:
        """Answers the order at hand; the first answer says that the child is ready."""
        self._stream.write(json.dumps(what) + "\n")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Order:
        line = self._stream.readline()
        if not line:
            raise StopIteration
        order: Order = json.loads(line)
        return order
