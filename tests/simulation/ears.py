"""What does the product say while it is simulated, and what does nobody catch?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from orchestrix.testing.simulation.virtual_time import LoopStalled


class Listener(Protocol):
    """Who keeps what happens, and what is wrong."""

    wrong: list[str]

    def note(self, what: str) -> None: ...

    def complain(self, what: str) -> None: ...


class Ears(logging.Handler):
    """Hears what the product logs: a stack trace is always a mistake."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(logging.INFO)
        self._listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        """Notes every line, and complains about those with a stack trace."""
        told = f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            self._listener.complain(f"logged with its stack: {told}: {record.exc_info[1]!r}")
        else:
            self._listener.note(f"log {told}")


@contextmanager
def heard(listener: Listener, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """What the product logs, and what nobody has caught, comes to the listener."""
    ears, log = Ears(listener), logging.getLogger("orchestrix")
    propagate, level = log.propagate, log.level
    log.addHandler(ears)
    log.propagate = False
    log.setLevel(logging.INFO)
    loop.set_exception_handler(
        lambda loop, context: listener.complain(f"uncaught: {context.get('message')} {context.get('exception')!r}")
    )
    try:
        yield
    except LoopStalled as stalled:
        listener.wrong.append(str(stalled))
    finally:
        log.removeHandler(ears)
        log.propagate = propagate
        log.setLevel(level)
