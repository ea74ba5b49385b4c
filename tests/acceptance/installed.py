"""How does a test get the library as a user does: as a wheel, in an environment without the repository?"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.documents import ROOT

EXTRAS: Final = "postgresql,mysql,otel,zmq"
_LIMIT_S: Final = 300.0
"""Longer than pip takes to bring all packages for an interpreter that has none of them."""


def build(folder: Path) -> Path:
    """The wheel of the checkout."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    @property
    def orchestrix(self) -> Path:
        """Its command."""
        return self.root / "bin" / "orchestrix"

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Its interpreter with these arguments, to the end."""
        return _run(str(self.python), *arguments, cwd=cwd, check=False)


def installed(wheel: Path, root: Path, interpreter: str = sys.executable) -> Installed:
    """A new environment at `root` with the wheel.

    What the wheel needs is taken from the environment of the tests, without a network and without the repository,
    which only a `.pth` file there names: such files count in the folders of an environment's own alone. For another
    version of Python pip has to bring it.
    """
    _run(interpreter, "-m", "venv", "--without-pip", str(root), cwd=root.parent)
    made = Installed(root)
    ours = _said(made.python, "import sys; print(*sys.version_info[:2])") == "{} {}".format(*sys.version_info[:2])
    what = ["--no-deps", "--no-index", str(wheel)] if ours else [f"{wheel}[{EXTRAS}]", "pytest"]
    _pip(made.python, what)
    if ours:
        site = Path(_said(made.python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        (site / "needed.pth").write_text("\n".join(dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))))
    return made


def clean() -> dict[str, str]:
    """The variables of this process without those that say what is imported or how ours is set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRIX_", "PYTHON"))}


def _pip(python: Path, what: Sequence[str]) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", "--python", str(python), "install", *quiet, *what, cwd=python.parent)


def _said(python: Path, code: str) -> str:
    return _run(str(python), "-c", code, cwd=python.parent).stdout.strip()


def _run(*command: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=cwd, env=clean(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S
    )
    assert not check or done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done
