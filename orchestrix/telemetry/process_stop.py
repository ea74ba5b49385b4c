"""Process stop: the last line of a process, which says why it has stopped and after how long."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from orchestrix import clock
from orchestrix.errors import OrchestrixError
from orchestrix.quantities import duration
from orchestrix.telemetry.log_events import PROCESS_STOPPED

ERROR: Final = "error"
INTERRUPTED: Final = "SIGINT"
ENDED: Final = "end of its work"


class ProcessStop:
    """Why a process stops, and since when. The first cause counts."""

    def __init__(self, logger: logging.Logger, error_level: int = logging.ERROR) -> None:
        self._logger, self._error_level = logger, error_level
        self._why: str | None = None
        self._since: float | None = None
        self._error: BaseException | None = None
        self.unfinished: int | None = None
        """How many commands and jobs were not finished; None in a process that is no worker."""

    @property
    def begun(self) -> bool:
        """Whether the process stops already."""
        return self._since is not None

    def begin(self, why: str | None = None) -> None:
        """The process stops from now on, at the latest; `why` is the name of a signal, None where it is not known."""
        self._since = clock.monotonic() if self._since is None else self._since
        self._why = why if self._why is None else self._why

    def fail(self, error: BaseException) -> None:
        """It stops because of `error`, even after a signal."""
        self._error = error

    def cut_off(self, signal_name: str) -> None:
        """A second signal ends it at once: writes the line."""
        self.begin()
        self._write(logging.WARNING, f"second {signal_name}", {})

    def write(self) -> None:
        """Writes the line: nothing may follow it. A process that was refused before it began to run has none."""
        if self._error is not None and self._since is None:
            return None
        self.begin()
        if self._error is None:
            return self._write(logging.INFO, self._why or ENDED, {})
        return self._write(self._error_level, ERROR, {"error_type": type(self._error).__name__})

    def _write(self, level: int, why: str, more: dict[str, object]) -> None:
        seconds = clock.monotonic() - (self._since or 0.0)
        unfinished = {} if self.unfinished is None else {"unfinished": self.unfinished}
        text = f", {self.unfinished} unfinished" if unfinished else ""
        # The text of another error may hold what is no one's business, such as an address with its password.
        cause = f"{why}: {self._error}" if isinstance(self._error, OrchestrixError) else why
        extra = {"event": PROCESS_STOPPED, "why": why, "seconds": round(seconds, 3), **unfinished, **more}
        self._logger.log(level, "stopped after %s%s: %s", duration(round(seconds, 2)), text, cause, extra=extra)


@contextmanager
def stop_logged(stop: ProcessStop) -> Iterator[ProcessStop]:
    """Writes the last line at the end of the block, also where that raises."""
    try:
        yield stop
    except KeyboardInterrupt:
        stop.begin(INTERRUPTED)
        raise
    except BaseException as error:
        stop.fail(error)
        raise
    finally:
        stop.write()
