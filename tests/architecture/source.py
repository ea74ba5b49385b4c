"""What is the source code made of, as the rules about it see it?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("app", "migrations", "orchestrix", "sagas", "workers")


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path

    @property
    def place(self) -> str:
        """The path from the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def name(self) -> str:
        """The dotted name by which it is imported."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__.py` of a package."""
        return self.path.name == "__init__.py"

    @cached_property
    def text(self) -> str:
        """The source."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.text, str(self.path))


def modules(*folders: str) -> Iterator[Module]:
    """The source files below the folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield Module(path)
