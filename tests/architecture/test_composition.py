"""Is a node wired bottom-up, so that nothing is set after its parts were made?"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import modules

ASSEMBLIES = {"orchestrix/node.py"} | {
    f"orchestrix/bootstrap/{name}.py" for name in ("cluster", "context", "dead_letters", "engine", "jobs")
}
WHILE_IT_RUNS = {"self.health.started", "self.health.stopping"}
"""The phase of a node, which its own start and stop change."""


def test_nothing_is_set_after_the_parts_were_made() -> None:
    assemblies = [module for module in modules("orchestrix") if module.place in ASSEMBLIES]
    assert len(assemblies) == len(ASSEMBLIES)
    found = [f"{module.place}:{line} {what}" for module in assemblies for line, what in set_afterwards(module.tree)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(relay):\n    relay.rules = 1",
        "def f(relay):\n    relay.rules += [1]",
        "def f(relay):\n    relay.rules: int = 1",
        "def f(relay):\n    relay.a, b = 1, 2",
        "def f(relay):\n    relay.rules.append(1)",
        "def f(relay):\n    setattr(relay, 'rules', 1)",
        "class A:\n    a: int = field(init=False)",
        "class A:\n    def f(self):\n        self.b.c = 1",
    ],
)
def test_what_is_set_afterwards_is_seen(source: str) -> None:
    assert list(set_afterwards(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "def f(parts):\n    parts.append(1)",
        "class A:\n    def f(self):\n        self.b = 1",
        "class A:\n    def f(self):\n        self.health.started = True",
        "class A:\n    a: int = field(default_factory=int)",
    ],
)
def test_own_state_may_be_set(source: str) -> None:
    assert not list(set_afterwards(ast.parse(source)))


def set_afterwards(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, source) of what is assigned to a part, added to a list of a part, or left to be set later."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, ctx=ast.Store()) if not _is_own(value):
                if ast.unparse(node) not in WHILE_IT_RUNS:
                    yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="append" | "extend" | "insert", value=ast.Attribute())):
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name("setattr")):
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name("field"), keywords=keywords) if any(one.arg == "init" for one in keywords):
                yield node.lineno, ast.unparse(node)


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"
