"""Does the ledger know which rows the passing tests name?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ledger
from tests.architecture.source import ROOT

CONFTEST = """
from pathlib import Path
from tests import ledger
ledger.RESULTS = Path(__file__).parent / "results.json"
def pytest_configure(config):
    config.addinivalue_line("markers", "req(*rows): rows")
    config.pluginmanager.register(ledger.Ledger(config), "ledger")
"""
TESTS = """
import os, pytest
@pytest.fixture
def broken():
    yield
    assert False
@pytest.mark.req("S3-1", "S3-2")
def test_good():
    pass
@pytest.mark.req("S3-3")
def test_bad():
    assert os.environ.get("MENDED")
@pytest.mark.req("S3-4")
def test_bad_at_the_end(broken):
    pass
"""

OTHERS = """
import os, pytest
@pytest.mark.req("S3-1")
def test_beside_it():
    pass
@pytest.mark.parametrize("what", ["a@b"])
@pytest.mark.req("S3-5")
def test_of(what):
    assert not os.environ.get("MENDED") or os._exit(1)
"""
TWO = ("-p", "xdist", "-n", "2")


def test_every_row_is_listed_with_its_proof() -> None:
    rows = ledger.rows()
    assert len(rows) == 311
    assert set(rows.values()) == {"doc", "test"}


def test_only_passing_tests_prove_and_a_part_changes_only_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    run(tmp_path)
    assert proven(tmp_path) == {"S3-1", "S3-2"}
    run(tmp_path, "-k", "test_bad", mended=True)
    assert proven(tmp_path) == {"S3-1", "S3-2", "S3-3"}
    run(tmp_path)
    assert proven(tmp_path) == {"S3-1", "S3-2"}


def test_what_several_processes_have_seen_ends_in_one_place(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text(OTHERS)
    run(tmp_path, *TWO)
    assert proven(tmp_path) == {"S3-1", "S3-2", "S3-5"}
    assert {name.partition("::")[2] for name in results(tmp_path)} == {"test_good", "test_beside_it", "test_of[a@b]"}
    run(tmp_path, *TWO, "-k", "test_bad", mended=True)
    assert proven(tmp_path) == {"S3-1", "S3-2", "S3-3", "S3-5"}
    run(tmp_path, *TWO)
    assert proven(tmp_path) == {"S3-1", "S3-2", "S3-5"}


def test_a_test_whose_process_dies_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_other.py").write_text(OTHERS)
    run(tmp_path, *TWO)
    assert proven(tmp_path) == {"S3-1", "S3-5"}
    run(tmp_path, *TWO, "-k", "test_of", mended=True)
    assert proven(tmp_path) == {"S3-1"}


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.req('S9-1')\ndef test_it(): pass\n")
    assert "unknown rows of the specification: ['S9-1']" in run(tmp_path)


def test_the_report_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = [row for row, proof in ledger.rows().items() if proof == "test"]
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"test_all_but_two": needed[1:-1]}))
    monkeypatch.setattr(ledger, "RESULTS", results)
    assert ledger.main() == 0
    first, last, total = capsys.readouterr().out.splitlines()
    assert [first, last] == [needed[0], needed[-1]]
    assert total.startswith(f"{len(needed) - 2} of {len(needed)} rows")


def run(folder: Path, *arguments: str, mended: bool = False) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | (
        {"MENDED": "1"} if mended else {}
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return result.stdout + result.stderr


def proven(folder: Path) -> set[str]:
    return {row for named in results(folder).values() for row in named}


def results(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((folder / "results.json").read_text())
    return found
