"""How does a line typed in a shell become work and an exit code?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from orchestrix.cli.arguments import parse
from orchestrix.cli.exit_codes import INTERRUPTED, PIPE_CLOSED, report

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. No exception but argparse's own `SystemExit` after `--help`."""
    _make_printable()
    try:
        command: Callable[[], int] = parse(sys.argv[1:] if argv is None else argv)
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _pipe_closed()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return report(error)


def _make_printable() -> None:
    """A locale that lacks a character, or an output that is closed (`>&-`), must not end the command.

    The character is shown as an escape instead; what goes to a closed output is dropped.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
        elif reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _pipe_closed() -> int:
    """The reader (`head`, a pager) has seen enough. The interpreter's own flush at exit must not fail once more."""
    with suppress(OSError, ValueError):  # no real file behind it, then there is nothing to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
