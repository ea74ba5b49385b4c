"""Does every report reach the process that shows it?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.source import ROOT

TESTS = r"""
import logging
def test_good():
    print("half \ud800")
    logging.getLogger("x").warning("half \udfff")
def test_bad():
    assert "half \ud800" == "whole"
"""


def test_letters_that_cannot_be_encoded_end_no_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist",
        "-n",
        "2",
        "-rP",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "test_it.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    assert result.stdout.count(r"half \ud800") >= 2
    assert r"half \udfff" in result.stdout
