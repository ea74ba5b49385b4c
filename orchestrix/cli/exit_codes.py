"""Exit codes: the code and the error message with which a command ends."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
UNREACHABLE = 5
NOT_ENDED = 6
INTERRUPTED = 130
PIPE_CLOSED = 141


def report(error: BaseException) -> int:
    """Says on stderr, in one line, what went wrong, and returns the exit code.

    An unexpected error gets a second line with what to do next; its stack trace is shown only to who asked for
    the debug level.
    """
    error = _innermost(error)
    code, message, foreseen = _judge(error)
    with suppress(OSError):  # stderr has no reader
        warn(message, "error")
        if not foreseen:
            _print_details(error)
    return code


def _print_details(error: BaseException) -> None:
    if _debugging():
        traceback.print_exception(error)
    else:
        print("       set ORCHESTRIX_LOG__LEVEL=debug and try again to see where it happened", file=sys.stderr)


def warn(message: str, kind: str = "warning") -> None:
    """One line on stderr."""
    from orchestrix.cli.output import visible

    print(f"{kind}: {visible(message)}", file=sys.stderr)


def _judge(error: BaseException) -> tuple[int, str, bool]:
    """(exit code, sentence, whether it was expected)."""
    from orchestrix import errors  # late: it brings the whole saga vocabulary, which `--help` can do without

    codes: list[tuple[type[Exception], int]] = [
        (errors.ConfigError, USAGE),
        (errors.Invalid, USAGE),
        (errors.DefinitionError, USAGE),
        (errors.NotFound, NOT_FOUND),
        (errors.ConflictError, CONFLICT),
        (errors.Unavailable, UNREACHABLE),
        (errors.OrchestrixError, FAILED),
    ]
    for kind, code in codes:
        if isinstance(error, kind):
            return code, str(error), True
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return FAILED, f"{place}{error.strerror}", False
    return FAILED, f"unexpected {type(error).__name__}: {error}", False


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _debugging() -> bool:
    level = os.environ.get("ORCHESTRIX_LOG__LEVEL") or os.environ.get("LOG_LEVEL") or ""
    return level.lower() == "debug"
