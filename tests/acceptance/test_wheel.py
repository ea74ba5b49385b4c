"""Is the wheel the whole library, and nothing else, on each Python that is here?"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

import pytest

from orchestrix.persistence.schema import migrator
from orchestrix.version import DISTRIBUTION, VERSION
from tests.acceptance.installed import Installed, installed
from tests.documents import ROOT


def runs(interpreter: str) -> bool:
    """Whether it is one: what only stands for an interpreter may have none to give (pyenv)."""
    return subprocess.run([interpreter, "-c", "import venv"], capture_output=True).returncode == 0


OTHERS: Final = ("app", "migrations", "sagas", "tests", "workers")
"""Packages of the repository that a user may have under the same names."""
PYTHONS: Final = [sys.executable, *filter(runs, filter(None, map(shutil.which, ("python3.12", "python3.13"))))]
EVERY_MODULE: Final = """
import importlib, pkgutil, orchestrix
ran_by_alembic = "orchestrix.migrations.env"
names = [one.name for one in pkgutil.walk_packages(orchestrix.__path__, "orchestrix.") if one.name != ran_by_alembic]
for name in names:
    importlib.import_module(name)
assert len(names) > 300, names
from orchestrix import *
print(orchestrix.__file__)
"""


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_it_holds_one_import_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert tops == {"orchestrix", f"orchestrix_sagas-{VERSION}.dist-info"}


def test_it_holds_every_file_of_the_library_and_the_migrations(wheel: Path) -> None:
    expected = {f"orchestrix/{place}" for place in files("orchestrix")}
    expected |= {f"orchestrix/migrations/{place}" for place in files("migrations")}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("orchestrix/")} == expected
    assert "orchestrix/py.typed" in expected
    assert any(name.startswith(f"orchestrix/migrations/versions/{migrator.HEAD}_") for name in expected)


def test_it_says_what_it_is(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, VERSION)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])} >= {"Changelog", "Documentation"}


def test_drivers_of_servers_and_telemetry_are_extras(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    base = {need for need in needs if "extra ==" not in need}
    assert any(need.startswith("aiosqlite") for need in base)
    extras = {"postgresql": "asyncpg", "mysql": "asyncmy", "otel": "opentelemetry-sdk", "zmq": "pyzmq"}
    for extra, package in extras.items():
        assert extra in metadata.get_all("Provides-Extra", [])
        assert [need for need in needs if need.startswith(package) and need.endswith(f"extra == '{extra}'")]
        assert [need for need in base if need.startswith(package)] == []


def test_the_changelog_knows_this_version() -> None:
    assert VERSION in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("interpreter", PYTHONS, ids=[Path(python).name for python in PYTHONS])
def test_every_module_can_be_imported(wheel: Path, tmp_path: Path, fresh: Installed, interpreter: str) -> None:
    here = fresh if interpreter == sys.executable else installed(wheel, tmp_path / "environment", interpreter)
    done = here.run("-W", "error", "-c", EVERY_MODULE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(here.root)
    for command in (("-m", "orchestrix"), (str(here.orchestrix),)):
        helped = here.run(*command, "--help", cwd=tmp_path)
        assert helped.returncode == 0, helped.stderr
        assert helped.stdout.startswith("usage: orchestrix ")


def test_the_repository_is_not_there(fresh: Installed, tmp_path: Path) -> None:
    for name in OTHERS:
        done = fresh.run("-c", f"import {name}", cwd=tmp_path)
        assert f"No module named '{name}'" in done.stderr


def test_it_brings_its_migrations(fresh: Installed, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'own.db'}"
    for action, says in (
        ("upgrade", f"the schema is at {migrator.HEAD}\n"),
        ("check", "the schema is as it should be"),
    ):
        done = fresh.run("-m", "orchestrix", "db", action, "--database-url", url, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(says)
    with sqlite3.connect(tmp_path / "own.db") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [(migrator.HEAD,)]
    database.close()


def test_migrations_lie_within_the_package_or_beside_it(tmp_path: Path) -> None:
    package = tmp_path / "orchestrix"
    package.mkdir()
    (tmp_path / "migrations").mkdir()
    assert migrator.scripts_of(package) == tmp_path / "migrations", "a checkout"
    (package / "migrations").mkdir()
    assert migrator.scripts_of(package) == package / "migrations", "a wheel, beside somebody's migrations"


def files(folder: str) -> set[str]:
    """The files below a folder of the repository, from there, without what Python has compiled."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT / folder).as_posix() for path in found}
