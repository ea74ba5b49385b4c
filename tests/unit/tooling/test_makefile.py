"""Does `make install` work where Python comes without venv, and say what to do where it cannot?"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

# Stands in for Python: old or not, with venv once the file says so, and noting what it was asked.
PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >>"$NOTES"
case "$*" in
    "-c import sys; sys.exit(sys.version_info < (3, 11))") exit "${TOO_OLD:-0}" ;;
    "-c import venv, ensurepip") [ -e "$HAS_VENV" ] || exit 1 ;;
    *version_info*) echo 3.11 ;;
    -V) echo Python 3.9.2 ;;
    "-m venv --clear .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
esac
"""
APT = """#!/bin/sh
echo "apt-get $*" >>"$NOTES"
[ "$1" != install ] || touch "$HAS_VENV"
"""
ID = """#!/bin/sh
echo "$USER_ID"
"""


class Machine:
    """A folder with the Makefile and a PATH that holds little."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes = root / "notes"
        self.has_venv = root / "has-venv"
        self.bin = root / "bin"
        self.bin.mkdir()
        for name in ("sh", "make", "cp", "echo", "ln", "mkdir", "touch", "basename"):
            (self.bin / name).symlink_to(shutil.which(name) or name)
        shutil.copy(ROOT / "Makefile", root)
        (root / "pyproject.toml").touch()
        self.program("python3", PYTHON)
        self.program("id", ID)

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def install(self, *, user: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        return self.make("install", user=user, **more)

    def make(self, *arguments: str, user: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": str(self.bin),
            "NOTES": str(self.notes),
            "HAS_VENV": str(self.has_venv),
            "USER_ID": str(user),
        }
        command = [str(self.bin / "make"), *arguments]
        return subprocess.run(
            command, cwd=self.root, env=environment | more, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    def noted(self) -> str:
        return self.notes.read_text() if self.notes.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_packages_go_into_an_environment_of_their_own(machine: Machine) -> None:
    machine.has_venv.touch()
    assert machine.install().returncode == 0
    assert installed(machine) == [".[postgresql,mysql,otel,zmq]"]


def installed(machine: Machine) -> list[str]:
    """What pip was asked to install, in this order."""
    line = "python -m pip install --quiet --disable-pip-version-check --editable "
    return [one.removeprefix(line) for one in machine.noted().splitlines() if one.startswith(line)]


@pytest.mark.parametrize("target", ["test", "soak", "services", "check", "fmt", "bench", "requirements"])
def test_tools_come_with_the_first_target_that_needs_them(machine: Machine, target: str) -> None:
    machine.has_venv.touch()
    machine.install()
    for name in ("ruff", "mypy", "lint-imports"):
        (machine.root / ".venv/bin" / name).symlink_to("/bin/true")
    assert installed(machine) == [".[postgresql,mysql,otel,zmq]"]
    assert machine.make(target).returncode == 0
    assert machine.make(target).returncode == 0
    assert installed(machine) == [".[postgresql,mysql,otel,zmq]", ".[dev]"]


def test_both_are_done_again_when_pyproject_changes(machine: Machine) -> None:
    machine.has_venv.touch()
    machine.make("tools")
    machine.notes.unlink()
    earlier = (machine.root / "pyproject.toml").stat().st_mtime - 10
    for stamp in ("installed", "tools"):
        os.utime(machine.root / ".venv" / stamp, (earlier, earlier))
    machine.make("tools")
    assert installed(machine) == [".[postgresql,mysql,otel,zmq]", ".[dev]"]


def test_development_needs_no_tools(machine: Machine) -> None:
    machine.has_venv.touch()
    machine.install()
    machine.program("orchestrix", '#!/bin/sh\necho "orchestrix $*" >>"$NOTES"\n')
    shutil.move(machine.bin / "orchestrix", machine.root / ".venv/bin/orchestrix")
    assert machine.make("dev").returncode == 0
    assert machine.noted().splitlines()[-1] == "orchestrix dev"
    assert installed(machine) == [".[postgresql,mysql,otel,zmq]"]


def test_the_environment_knows_the_service_wherever_the_folder_is(machine: Machine) -> None:
    machine.has_venv.touch()
    machine.install()
    link = machine.root / ".venv/orchestrix.toml"
    assert link.resolve() == machine.root / "orchestrix.toml"
    link.unlink()
    link.symlink_to("/somewhere/else/orchestrix.toml")  # as after the folder was moved
    assert machine.make("install").returncode == 0
    assert link.resolve() == machine.root / "orchestrix.toml"


def test_it_is_done_once_until_pyproject_changes(machine: Machine) -> None:
    machine.has_venv.touch()
    machine.install()
    machine.notes.unlink()
    assert machine.install().returncode == 0
    assert machine.noted() == ""
    later = (machine.root / ".venv/installed").stat().st_mtime + 10
    os.utime(machine.root / "pyproject.toml", (later, later))
    machine.install()
    assert "pip install" in machine.noted()
    assert "-m venv" not in machine.noted()


def test_root_installs_a_missing_venv(machine: Machine) -> None:
    machine.program("apt-get", APT)
    result = machine.install()
    assert result.returncode == 0, result.stderr
    assert "apt-get install -y python3.11-venv" in machine.noted()
    assert "installing the package python3.11-venv" in result.stdout


def test_sudo_is_used_where_it_asks_nothing(machine: Machine) -> None:
    machine.program("apt-get", APT)
    machine.program("sudo", '#!/bin/sh\necho "sudo" >>"$NOTES"\n[ "$1" != -n ] || shift\nexec "$@"\n')
    (machine.bin / "true").symlink_to("/bin/true")
    assert machine.install(user=1000).returncode == 0
    assert "sudo\napt-get update" in machine.noted()


def test_without_root_the_line_to_type_is_said(machine: Machine) -> None:
    machine.program("apt-get", APT)
    result = machine.install(user=1000)
    assert result.returncode != 0
    assert "type: sudo sh -c 'apt-get update && apt-get install -y python3.11-venv'" in result.stderr
    assert "apt-get" not in machine.noted()


def test_an_old_python_is_refused_with_a_sentence(machine: Machine) -> None:
    result = machine.install(TOO_OLD="1")
    assert result.returncode != 0
    assert "Orchestrix needs Python 3.11 or newer, and python3 is Python 3.9.2" in result.stderr
    assert not (machine.root / ".venv").exists()


def test_no_python_at_all_is_a_sentence_too(machine: Machine) -> None:
    (machine.bin / "python3").unlink()
    result = machine.install()
    assert "there is no python3; install Python 3.11" in result.stderr


@pytest.mark.parametrize(
    ("typed", "run"),
    [
        ("", "-n auto"),
        ("tests/unit -n 0", "-n auto tests/unit -n 0"),
        ("tests/unit -p no:xdist", "tests/unit -p no:xdist"),
    ],
)
def test_tests_run_in_several_processes_unless_told_otherwise(machine: Machine, typed: str, run: str) -> None:
    machine.has_venv.touch()
    assert machine.make("test", f"ARGS={typed}").returncode == 0
    assert machine.noted().splitlines()[-1].split() == ["python", "-m", "pytest", *run.split()]


def test_a_soak_runs_in_one_process(machine: Machine) -> None:
    machine.has_venv.touch()
    assert machine.make("soak").returncode == 0
    assert machine.noted().splitlines()[-1].split() == ["python", "-m", "pytest", "-o", "faulthandler_timeout=3600"]
