"""How does a test type a command without a process of its own?"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrix.cli import main


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as a document."""
        return json.loads(self.out)


class Shell:
    """Runs commands in this process, in a folder of the test's own."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._capture = capture
        self._patch = patch
        patch.delenv("COLUMNS", raising=False)  # tables are cut to it

    def __call__(self, *arguments: str) -> Answer:
        """`orchestrix arguments…`."""
        self._capture.readouterr()
        try:
            code = main(arguments)
        except SystemExit as leaving:  # argparse after --help
            code = int(leaving.code or 0)
        written = self._capture.readouterr()
        return Answer(code, written.out, written.err)

    def set(self, **variables: str) -> None:
        """Environment variables for the commands to come."""
        for name, value in variables.items():
            self._patch.setenv(name, value)


@contextmanager
def logging_kept() -> Iterator[None]:
    """Puts the logging of the test run back as it was."""
    loggers = [logging.getLogger(name) for name in (None, *logging.Logger.manager.loggerDict)]
    before = [(one, one.level, one.disabled, one.propagate, [*one.handlers]) for one in loggers]
    try:
        yield
    finally:
        for logger, level, disabled, propagate, handlers in before:
            if logger.level != level:  # setting it forgets what every logger has found out about its level
                logger.setLevel(level)
            logger.disabled, logger.propagate = disabled, propagate
            logger.handlers[:] = handlers


def clear_environment(patch: pytest.MonkeyPatch) -> None:
    """Nobody has set anything."""
    for name in os.environ:
        if name.startswith("ORCHESTRIX_") or name in ("PORT", "LOG_LEVEL", "NO_COLOR"):
            patch.delenv(name)
