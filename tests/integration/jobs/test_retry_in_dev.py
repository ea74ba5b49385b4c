"""Does a job that always fails say why, and succeed after its cause is gone, by the commands that are named?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.processes import Processes
from tests.support import eventually_sync, free_port

PRINTER = """
from pathlib import Path

from orchestrix import JobContext, job


@job("print")
async def print_pages(context: JobContext) -> dict[str, int]:
    await context.log(f"attempt {context.attempt}")
    if not Path("paper").exists():
        raise RuntimeError("no paper")
    return {"pages": 7}
"""


def test_a_job_that_fails_for_ever_is_explained_mended_and_retried(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "printer.py").write_text(PRINTER)
    dev = processes.spawn("dev", "--port", str(free_port()), cwd=tmp_path, env={"ORCHESTRIX_WORKERS": "printer"})
    dev.wait_for_line_sync("^Ready in")

    def asked(*words: str) -> dict[str, Any]:
        answer = processes.run(*words, "-o", "json", cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    def ended(state: str) -> dict[str, Any] | None:
        found = asked("jobs", "show", job)
        return found if found["state"] == state else None

    job = asked("jobs", "submit", "default", "print", "--retries", "1")["id"]
    eventually_sync(lambda: ended("FAILED"), deadline=20, message="both attempts fail")
    why = asked("jobs", "why", job)
    assert (why["state"], why["blocker"]) == ("FAILED", "failed")
    assert why["sentence"] == "Failed in attempt 2 (no retries left of 1): RuntimeError: no paper."
    logs, retry = [found.split() for found in re.findall("`orchestrix ([^`]+)`", why["nextAction"])]
    lines = processes.run(*logs, cwd=tmp_path).stdout.splitlines()
    assert [line.split()[-2:] for line in lines if "attempt" in line] == [["attempt", "1"], ["attempt", "2"]]
    (tmp_path / "paper").touch()
    assert asked(*retry, "--reason", "there is paper")["attempt"] == 2
    done = eventually_sync(lambda: ended("SUCCEEDED"), deadline=20, message="it has paper")
    assert done is not None
    assert (done["attempt"], done["result"], done["error"]) == (3, {"pages": 7}, None)
    assert [one["state"] for one in done["attempts"]] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert asked("jobs", "why", job)["sentence"] == "Succeeded in attempt 3."
    assert processes.run("jobs", "retry", job, cwd=tmp_path).returncode == 4
    [row] = [one for one in asked("audit")["items"] if one["action"] == "retry-job"]
    assert (row["reason"], row["detail"]["job"]) == ("there is paper", job)
    dev.terminate()
    assert dev.exited_sync() == 0
