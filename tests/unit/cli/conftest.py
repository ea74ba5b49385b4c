"""What do the tests of the command line share?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.shell import Shell, clear_environment, logging_kept


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Types commands in an empty folder, with nothing set."""
    clear_environment(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with logging_kept():
        yield Shell(tmp_path, capsys, monkeypatch)
