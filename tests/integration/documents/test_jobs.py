"""Is what the page about jobs says true?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrix import JobContext
from orchestrix.testing import JobStory
from orchestrix.testing.job_scenario import JobExpected
from orchestrix.worker.jobs import context, report_buffer
from tests.documents import ROOT, block

JOBS = ROOT / "docs" / "jobs.md"
RUN = """

import unittest

class Documents(unittest.TestCase):
    def test_the_documents(self):
        test_a_cancel_between_two_pages()
        test_no_pages()
"""
RUN_RELEASE = """

import unittest

class Documents(unittest.TestCase):
    def test_the_documents(self):
        test_a_build_that_fails_is_untagged()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user's jobs and their tests lie."""
    (tmp_path / "search.py").write_text(block(JOBS, "python", '@job("reindex"'))
    (tmp_path / "test_search.py").write_text(block(JOBS, "python", "given_job(") + RUN)
    (tmp_path / "release.py").write_text(block(JOBS, "python", "RELEASE = Saga("))
    (tmp_path / "test_release.py").write_text(block(JOBS, "python", "given(release.RELEASE") + RUN_RELEASE)
    return tmp_path


def test_the_tests_of_the_page_run_elsewhere(folder: Path) -> None:
    run = [sys.executable, "-W", "error", "-m", "unittest", "-v", "test_search", "test_release"]
    ended = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "Ran 2 tests" in ended.stderr
    assert "orchestrix" not in ended.stderr, "what the worker logs belongs to the story, not to the terminal"


def test_all_that_there_is_to_say_is_documented() -> None:
    text = JOBS.read_text()
    said = [name for kind in (JobStory, JobContext) for name in vars(kind) if not name.startswith("_")]
    facts = ["payload", "job_id", "attempt", "history_id", "queue", "name", "correlation_id", "timeout"]
    assert [name for name in (*said, *facts, *JobExpected.__annotations__) if name not in text] == []


def test_the_limits_are_those_of_the_code() -> None:
    text = JOBS.read_text()
    assert f"{context.MAX_LOG:,} characters" in text
    assert f"{context.MAX_PROGRESS // 1024} KiB" in text
    assert f"{report_buffer.MAX_UNCONFIRMED:,} lines or {report_buffer.MAX_UNCONFIRMED_BYTES // 1024**2} MiB" in text
