"""What do the commands say of a database in which another program has a table of our name?"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.processes import Processes
from tests.support import free_port

SAID = "error: the table jobs belongs to another program but has one of Orchestrix's names; nothing was changed. Use"


@pytest.mark.parametrize("command", [("db", "upgrade"), ("dev", "--port", str(free_port()))], ids=["upgrade", "dev"])
def test_it_is_refused_with_a_sentence(processes: Processes, tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE jobs (id INTEGER, title TEXT)")
        theirs.execute("INSERT INTO jobs VALUES (1, 'gardener')")
    theirs.close()
    done = processes.run(*command, env={"ORCHESTRIX_DATABASE_URL": f"sqlite+aiosqlite:///{path}"})
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(SAID)  # `dev` begins with a word on its broker
    assert "Traceback" not in done.stderr
    with sqlite3.connect(path) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == [("jobs",)]
        assert theirs.execute("SELECT * FROM jobs").fetchall() == [(1, "gardener")]
    theirs.close()
