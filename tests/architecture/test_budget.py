"""Does the size budget measure what it says?"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture import budget
from tests.architecture.budget import Function, Report, find_cycle, functions, imports
from tests.architecture.source import Module


def report(*lengths: int, modules: dict[str, int] | None = None, cycle: list[str] | None = None) -> Report:
    return Report([Function("f", n) for n in lengths], modules or {"m.py": 100}, test_lines=100, cycle=cycle or [])


def test_a_docstring_does_not_count() -> None:
    source = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    assert [f.lines for f in functions(ast.parse(source), "m")] == [3]


def test_small_code_is_within_the_budget() -> None:
    assert list(report(3, 5, 7, 20).excesses()) == []


@pytest.mark.parametrize(
    ("measured", "word"),
    [
        (report(*[5] * 99, 61), "61 lines"),
        (report(8, 8, 8), "median"),
        (report(1, 1, 1, 1, 1, 32, 32), "nine in ten"),
        (report(5, 5, modules={"big.py": 401}), "big.py"),
        (report(5, 5, cycle=["a", "b", "a"]), "a -> b -> a"),
    ],
)
def test_what_is_over_the_budget_is_named(measured: Report, word: str) -> None:
    assert [sentence for sentence in measured.excesses() if word in sentence]


def test_imports_in_a_circle_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = written(tmp_path, monkeypatch, a="from p import b", b="from .c import x", c="import p.a")
    assert set(find_cycle(graph)) == {"p.a", "p.b", "p.c"}


def test_imports_for_type_checkers_and_inside_functions_are_no_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.b\ndef f():\n    import p.b\n"
    assert find_cycle(written(tmp_path, monkeypatch, a=a, b="import p.a")) == []


def test_the_command_reports_and_agrees_with_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert budget.main() == 0, capsys.readouterr().err
    assert "median" in capsys.readouterr().out


def written(root: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> dict[str, set[str]]:
    monkeypatch.setattr("tests.architecture.source.ROOT", root)
    (root / "p").mkdir()
    for name, source in sources.items():
        (root / "p" / f"{name}.py").write_text(source)
    return imports([Module(root / "p" / f"{name}.py") for name in sources])
