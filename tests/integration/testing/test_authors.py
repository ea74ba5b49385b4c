"""Can somebody outside of this repository test a saga of their own, with nothing but Python?"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrix.testing import Story, When
from orchestrix.testing.expectations import Expected
from tests.documents import README, ROOT, block

TESTING = ROOT / "docs" / "testing.md"

UNITTEST = """

import sys
import unittest

class InUnittest(unittest.TestCase):
    def test_the_documents(self):
        test_a_seat_is_paid_whoever_dies()
        self.assertNotIn("pytest", sys.modules)

    def test_no_seat_is_left(self):
        story = given(orders.ORDER, handlers=orders, data={"film": "sold out"}).run()
        story.expect(state="FAILED", error="SoldOut", commands=["cmd.reserve"])
        with self.assertRaisesRegex(AssertionError, "state: 'FAILED', expected 'COMPLETED'"):
            story.expect(state="COMPLETED")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user's saga and its tests lie."""
    assert not tmp_path.is_relative_to(ROOT)
    (tmp_path / "orders.py").write_text(block(README, "python", "ORDER = Saga("))
    (tmp_path / "test_orders.py").write_text(block(TESTING, "python", "given(") + UNITTEST)
    return tmp_path


def test_the_tests_of_the_documents_run_elsewhere(folder: Path) -> None:
    run = [sys.executable, "-W", "error", "-m", "unittest", "-v", "test_orders"]
    ended = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "Ran 2 tests" in ended.stderr
    assert "orchestrix" not in ended.stderr, "what the product logs belongs to the story, not to the terminal"


def test_a_users_modules_need_two_packages(folder: Path) -> None:
    imported = {
        node.module.partition(".")[0]
        for name in ("orders.py", "test_orders.py")
        for node in ast.walk(ast.parse((folder / name).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert imported == {"orchestrix", "pydantic"}


def test_all_that_there_is_to_say_is_documented() -> None:
    text = TESTING.read_text()
    said = [name for kind in (Story, When) for name in vars(kind) if not name.startswith("_")]
    assert [name for name in (*said, *Expected.__annotations__) if name not in text] == []
