"""Which modules does the library load, and when?"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.source import modules
from tests.processor_time import cpu_seconds, least_cpu_seconds

POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Parts of the standard library that not every system has (its documentation says "Availability: Unix")."""

HEAVY: Final = {"aio_pika", "alembic", "asyncio", "fastapi", "jsonschema", "pydantic", "sqlalchemy", "uvicorn"}
IMPORT: Final = ("-c", "import orchestrix")
NAMES: Final = (
    "-c",
    "import orchestrix\nfor name in {*orchestrix.__all__} - {'create_app'}: getattr(orchestrix, name)",
)
"""All public names but the one that serves HTTP."""
HELP: Final = ("-m", "orchestrix", "--help")


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [(IMPORT, set()), (HELP, set()), (NAMES, {"asyncio", "pydantic"})],  # the names are models and coroutines
    ids=["import", "help", "names"],
)
def test_what_is_heavy_is_loaded_by_who_needs_it(arguments: tuple[str, ...], needs: set[str]) -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True, timeout=30
    ).stderr
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert "orchestrix" in loaded
    assert loaded & HEAVY == needs


@pytest.mark.parametrize(
    ("command", "promised_s"),
    [((sys.executable, *IMPORT), 0.3), ((str(Path(sys.executable).with_name("orchestrix")), "--help"), 0.1)],
    ids=["import", "help"],
)
def test_the_times_that_are_promised(command: tuple[str, ...], promised_s: float) -> None:
    assert least_cpu_seconds(command, runs=3) < promised_s


def test_the_time_of_a_process_is_measured() -> None:
    busy = "import time\nwhile time.process_time() < 0.35: pass"
    assert cpu_seconds((sys.executable, "-c", busy)) > 0.3
    assert cpu_seconds((sys.executable, "-c", "import time; time.sleep(0.35)")) < 0.3


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
