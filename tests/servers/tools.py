"""Tools that tests need beside the servers: where a program is, and in which Debian package."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final


class ToolMissing(Exception):
    """A program is not there. A test that needs it fails with this sentence; it is never skipped."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, and the Debian package that has it."""

    program: str
    package: str

    def find(self) -> str | None:
        """Where the program is."""
        return shutil.which(self.program)

    def run(
        self, *arguments: str, text: str | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs it with these arguments and `text` as its input, for a minute at most. Raises `ToolMissing`."""
        program = self.find()
        if program is None:
            raise ToolMissing(f"{self.program} is missing: run `make services`, or install the package {self.package}")
        return subprocess.run([program, *arguments], input=text, cwd=cwd, capture_output=True, text=True, timeout=60)


PROMTOOL: Final = Tool("promtool", "prometheus")
NODE_JS: Final = Tool("node", "nodejs")
NPM: Final = Tool("npm", "npm")
TOOLS: Final = (PROMTOOL, NODE_JS, NPM)
