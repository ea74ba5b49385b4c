"""Which modules does the library load, and when?"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import modules

POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Parts of the standard library that not every system has (its documentation says "Availability: Unix")."""


def test_what_only_some_systems_have_is_imported_where_it_is_used() -> None:
    found = [
        f"{module.place}:{line} {name}"
        for module in modules("orchestrix", "migrations")
        for line, name in at_import(module.tree)
        if name.partition(".")[0] in POSIX_ONLY
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import fcntl",
        "import os, fcntl as locks",
        "from fcntl import flock",
        "if True:\n    import fcntl",
        "try:\n    import fcntl\nexcept ImportError:\n    fcntl = None",
        "class A:\n    import fcntl",
    ],
)
def test_an_import_at_import_is_seen(source: str) -> None:
    assert "fcntl" in [name for _, name in at_import(ast.parse(source))]


@pytest.mark.parametrize(
    "source",
    ["def f():\n    import fcntl", "async def f():\n    import fcntl", "from .fcntl import flock"],
)
def test_an_import_in_a_function_is_none(source: str) -> None:
    assert [name for _, name in at_import(ast.parse(source))] == []


def at_import(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of what is imported when this is: all but what stands in functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from at_import(node)
