"""What do the commands about jobs show of what the API says?"""

from __future__ import annotations

from tests.integration.cli.fake_api import FakeApi, Reply, problem
from tests.integration.cli.samples import JOB
from tests.unit.cli.shell import Shell


def test_a_retry_says_why(api: FakeApi, shell: Shell) -> None:
    path = f"/jobs/{JOB['id']}/retry"
    again = {**JOB, "state": "PENDING"}
    api.on(
        "POST", path, Reply(body=again), Reply(body=again), problem(409, "illegal_transition", "The job is RUNNING.")
    )
    answer = shell("jobs", "retry", str(JOB["id"]), "--reason", "there is paper")
    assert (answer.code, api.requests[0].body) == (0, {"reason": "there is paper"})
    assert "state" in answer.out
    assert shell("jobs", "retry", str(JOB["id"]), "-o", "json").json == again
    assert str(api.requests[1].body["reason"]).startswith("by hand (")
    refused = shell("jobs", "retry", str(JOB["id"]))
    assert (refused.code, refused.err) == (4, "error: The job is RUNNING\n")


def test_why_is_a_sentence_and_what_helps(api: FakeApi, shell: Shell) -> None:
    said = {
        "id": JOB["id"],
        "state": "FAILED",
        "blocker": "failed",
        "sentence": "Failed in attempt 2 (no retries left of 1): Broken: no paper.",
        "nextAction": "Fix the cause.",
        "since": "2026-01-31T12:00:00.000000Z",
        "nextAt": None,
    }
    api.on("GET", f"/jobs/{JOB['id']}/why", Reply(body=said), Reply(body=said), problem(404, "not_found", "No job."))
    answer = shell("jobs", "why", str(JOB["id"]))
    assert answer.code == 0, "also of one that has failed"
    assert answer.out.splitlines()[:3] == [f"why    {said['sentence']}", "next   Fix the cause.", "code   failed"]
    assert shell("jobs", "why", str(JOB["id"]), "-o", "json").json == said
    assert shell("jobs", "why", str(JOB["id"])).code == 3


def test_a_list_says_what_a_job_waits_for(api: FakeApi, shell: Shell) -> None:
    sentence = "no worker serves queue reports: start one with `orchestrix worker --job-queue reports`"
    items = [{**JOB, "waitsFor": sentence}, {**JOB, "id": "another", "waitsFor": None}]
    api.on("GET", "/jobs", Reply(body={"items": items, "nextCursor": None}))
    answer = shell("jobs", "list")
    assert answer.code == 0
    head, waiting, other = answer.out.splitlines()
    assert head.endswith("  WAITING FOR")
    assert waiting.endswith(f"  {sentence}")
    assert (other.split()[0], other.split()[-1]) == ("another", "-")
