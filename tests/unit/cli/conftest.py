"""What do the tests of the command line share?"""

from __future__ import annotations

import functools
import gettext
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.shell import Shell, clear_environment, logging_kept


@pytest.fixture(scope="package", autouse=True)
def _no_catalogs_looked_for() -> Iterator[None]:
    """argparse looks through the file system for a translation of each of its words: half of the time of a parser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gettext, "find", functools.cache(gettext.find))
        yield


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Types commands in an empty folder, with nothing set."""
    clear_environment(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with logging_kept():
        yield Shell(tmp_path, capsys, monkeypatch)
