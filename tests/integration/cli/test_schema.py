"""Do `db upgrade`, `db current` and `db check` tell the truth about a database?"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from orchestrix.persistence.schema.migrator import HEAD
from tests.unit.cli.shell import Shell


@pytest.fixture
def database(shell: Shell) -> Path:
    path = shell.folder / "some.db"
    shell.set(ORCHESTRIX_DATABASE_URL=f"sqlite+aiosqlite:///{path}")
    return path


def change(database: Path, statement: str) -> None:
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("command", ["current", "check"])
def test_a_look_at_a_database_that_is_not_there_makes_none(shell: Shell, command: str) -> None:
    shell.set(ORCHESTRIX_DATABASE_URL=f"sqlite+aiosqlite:///{shell.folder}/deep/some.db")
    answer = shell("db", command)
    assert (answer.code, answer.out) == (1, "")
    said = f"the database file {shell.folder}/deep/some.db does not exist: run `orchestrix db upgrade`"
    assert answer.err == f"error: {said}\n"
    found = shell("doctor", "-o", "json").json["checks"]
    assert [one["detail"] for one in found if one["what"] == "database"] == [said]
    assert not (shell.folder / "deep").exists()


def test_from_nothing_to_this_version(shell: Shell, database: Path) -> None:
    database.touch()
    assert shell("db", "current", "-o", "json").json == {"current": None, "head": HEAD}
    behind = shell("db", "check")
    assert (behind.code, behind.err.count("\n"), "orchestrix db upgrade" in behind.err) == (1, 1, True)
    assert shell("db", "upgrade").code == 0
    assert shell("db", "current", "-o", "json").json == {"current": HEAD, "head": HEAD}
    assert shell("db", "check").code == 0


def test_scripts_read_what_was_done_and_what_differs(shell: Shell, database: Path) -> None:
    assert shell("db", "upgrade", "-o", "json").json == {"head": HEAD, "warnings": []}
    assert shell("db", "check", "-o", "json").json == {"head": HEAD, "differences": []}
    change(database, "CREATE TABLE stranger (id INTEGER)")
    answer = shell("db", "check", "-o", "json")
    assert (answer.code, len(answer.json["differences"])) == (1, 1)
    assert "stranger" in answer.json["differences"][0]


def test_upgrading_twice_changes_nothing(shell: Shell, database: Path) -> None:
    first, second = shell("db", "upgrade"), shell("db", "upgrade")
    assert (second.code, second.out, second.err) == (0, first.out, "")


def test_check_names_what_differs(shell: Shell, database: Path) -> None:
    shell("db", "upgrade")
    for statement in (
        "CREATE TABLE stranger (id INTEGER)",
        "ALTER TABLE apps ADD COLUMN foo INTEGER",
        "DROP TABLE broker_incarnation",
    ):
        change(database, statement)
    answer = shell("db", "check")
    assert answer.code == 1
    first, *rest = answer.out.splitlines()
    assert first.startswith(f"the schema says {HEAD}, but is not as this version made it")
    assert sorted(line.strip() for line in rest) == [
        "column apps.foo is in the database and not in this version",
        "table broker_incarnation is in this version and not in the database",
        "table stranger is in the database and not in this version",
    ]


@pytest.mark.parametrize("command", ["check", "upgrade"])
def test_a_database_that_is_ahead_is_left_alone(shell: Shell, database: Path, command: str) -> None:
    shell("db", "upgrade")
    change(database, "UPDATE alembic_version SET version_num = '9999'")
    answer = shell("db", command)
    assert answer.code == 1
    assert "9999" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("command", ["upgrade", "current", "check"])
def test_a_file_that_is_no_database_is_told_in_a_line(shell: Shell, database: Path, command: str) -> None:
    database.write_bytes(b"not a database at all, but long enough to look like one" * 100)
    answer = shell("db", command)
    assert answer.code != 0
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err


def test_a_copy_is_made_an_installation_of_its_own(shell: Shell, database: Path) -> None:
    assert shell("db", "upgrade").code == 0
    first = shell("db", "clone-reset", "-o", "json")
    assert (first.code, first.err) == (0, "")
    second = shell("db", "clone-reset", "--yes")
    assert (second.code, first.json["installation"] in second.out, "resume" in second.out) == (0, True, True)


def test_rows_of_the_originals_nodes_are_waited_out(shell: Shell, database: Path) -> None:
    assert shell("db", "upgrade").code == 0
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    change(
        database,
        "INSERT INTO nodes (id, name, state, roles, job_count, started_at, beat_at)"
        f" VALUES ('n-1', 'n', 'ALIVE', '', 0, {now}, {now})",
    )
    shell.set(ORCHESTRIX_CLUSTER__DEAD="2", ORCHESTRIX_CLUSTER__HEARTBEAT="0.5", ORCHESTRIX_CLUSTER__PRESENCE="0.5")
    waited = shell("db", "clone-reset")
    assert (waited.code, "heartbeats in the last 2 s: node n-1" in waited.err) == (0, True)


def test_a_reset_that_was_cut_off_is_told_by_who_comes_next(shell: Shell, database: Path) -> None:
    assert shell("db", "upgrade").code == 0
    change(database, "UPDATE installation SET resetting = 'x'")
    check = shell("db", "check")
    assert (check.code, "run it again" in check.err) == (1, True)
    assert shell("db", "clone-reset", "-o", "json").json["installation"] == "x"
    assert shell("db", "check").code == 0


def test_a_schema_that_is_behind_is_not_reset(shell: Shell, database: Path) -> None:
    database.touch()
    answer = shell("db", "clone-reset")
    assert (answer.code, "orchestrix db upgrade" in answer.err) == (1, True)
