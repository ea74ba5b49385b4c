"""What do the commands about jobs show of what the API says?"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.cli.fake_api import FakeApi, Reply, problem
from tests.integration.cli.samples import ATTEMPT, JOB
from tests.unit.cli.shell import Shell

ADDRESS = "http://10.0.0.7:9999"
GROUPED = {
    **JOB,
    "queue": None,
    "group": "shop",
    "routing": {"strategy": "CONSISTENT_HASH", "key": "customer-7", "address": None, "end": None},
    "address": ADDRESS,
    "attempts": [{**ATTEMPT, "address": ADDRESS}],
}


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("reports monthly", {"queue": "reports", "handler": "monthly"}),
        ("reports --retries 2 monthly", {"queue": "reports", "handler": "monthly", "retries": 2}),
        ("--retries 2 reports monthly", {"queue": "reports", "handler": "monthly", "retries": 2}),
        ("monthly --group shop", {"group": "shop", "handler": "monthly"}),
        ("--group=shop monthly", {"group": "shop", "handler": "monthly"}),
        ("--group shop --retries 2 monthly", {"group": "shop", "handler": "monthly", "retries": 2}),
        ("monthly --group shop --routing random", {"routing": {"strategy": "RANDOM"}}),
        ("monthly --group shop --key customer-7", {"routing": {"key": "customer-7"}}),
        (
            f"monthly --group shop --routing ADDRESS --address {ADDRESS}",
            {"routing": {"strategy": "ADDRESS", "address": ADDRESS}},
        ),
        (
            "monthly --group shop --routing SHARDING_BROADCAST --end any --deadline 5m",
            {"routing": {"strategy": "SHARDING_BROADCAST", "end": "any"}, "deadline": "5m"},
        ),
    ],
)
def test_a_job_is_for_a_queue_or_a_group(api: FakeApi, shell: Shell, line: str, sent: dict[str, Any]) -> None:
    api.on("POST", "/jobs", Reply(201, JOB))
    answer = shell("jobs", "submit", *line.split())
    assert (answer.code, answer.err) == (0, "")
    body = api.requests[0].body
    assert {name: body[name] for name in sent} == sent
    assert ("group" in body) == ("group" in line)
    assert ("queue" in body, "routing" in body) == ("group" not in line, "routing" in sent)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("reports monthly --key k", "--key is for executors: name their app with --group"),
        ("reports monthly --routing RANDOM --end any", "--routing and --end are for executors: name their app with"),
        ("reports monthly --group shop", "--group takes the place of QUEUE: give a HANDLER alone, not reports monthly"),
        (
            "monthly --group shop --routing ADDRESS",
            "--address is required with --routing ADDRESS: the address of the executor",
        ),
        (
            f"monthly --group shop --address {ADDRESS}",
            "--address has no use with --routing ROUND_ROBIN: leave it out, or use --routing ADDRESS",
        ),
        (
            "monthly --group shop --routing FIRST --end any",
            "--end has no use with --routing FIRST: leave it out, or use --routing SHARDING_BROADCAST",
        ),
        ("monthly --group shop --deadline 5m", "--deadline is for --routing SHARDING_BROADCAST"),
        ("reports monthly --deadline 5m", "--deadline is for executors"),
        ("monthly --group shop --routing NEAREST", "SHARDING_BROADCAST"),
        ("monthly --group shop --routing SHARDING_BROADCAST --end most", "any"),
        ("--group shop", "required: HANDLER"),
        ("monthly", "required: HANDLER"),
    ],
)
def test_options_that_do_not_go_together_are_refused(api: FakeApi, shell: Shell, line: str, told: str) -> None:
    answer = shell("jobs", "submit", *line.split())
    assert (answer.code, answer.out, api.requests) == (2, "", [])
    assert told in answer.err
    assert answer.err.count("\n") == 1


def test_what_the_api_says_of_a_target_is_in_words_of_options(api: FakeApi, shell: Shell) -> None:
    errors = [
        {"pointer": "/routing/key", "detail": "must have 1 to 200 code points"},
        {"pointer": "/group", "detail": "names no executor group"},
    ]
    api.on("POST", "/jobs", problem(422, "invalid_body", "Wrong.", errors=errors))
    answer = shell("jobs", "submit", "monthly", "--group", "shop", "--key", "x")
    assert answer.err == "error: Wrong; --key must have 1 to 200 code points; --group names no executor group\n"


def test_a_node_that_is_too_old_is_said(api: FakeApi, shell: Shell) -> None:
    texts = "Jobs for a group need every node to know them, and old (0.9.0) is too old: upgrade or stop it."
    api.on("POST", "/jobs", problem(503, "mixed_versions", texts))
    answer = shell("jobs", "submit", "monthly", "--group", "shop")
    assert (answer.code, "old (0.9.0) is too old" in answer.err) == (5, True)


def test_a_job_of_a_group_shows_its_executor(api: FakeApi, shell: Shell) -> None:
    api.on("GET", f"/jobs/{JOB['id']}", Reply(body=GROUPED))
    lines = [line.split(maxsplit=1) for line in shell("jobs", "show", str(JOB["id"])).out.splitlines()]
    assert ["group", "shop"] in lines
    assert ["routing", "CONSISTENT_HASH, key customer-7"] in lines
    assert ["address", ADDRESS] in lines
    assert not any(line[0] == "queue" for line in lines)
    assert shell("jobs", "show", str(JOB["id"]), "-o", "json").json == GROUPED


def test_lists_of_a_group_and_of_a_broadcast(api: FakeApi, shell: Shell) -> None:
    part = {**GROUPED, "parentId": JOB["id"], "shardIndex": 1, "shardTotal": 2}
    api.on("GET", "/jobs", Reply(body={"items": [part], "nextCursor": None}))
    answer = shell("jobs", "list", "--group", "shop", "--parent", str(JOB["id"]))
    assert answer.code == 0
    assert {name: api.requests[0].query[name] for name in ("group", "parentId")} == {
        "group": ["shop"],
        "parentId": [JOB["id"]],
    }
    head, line = answer.out.splitlines()
    titles = head.replace("QUEUE OR GROUP", "GROUP").split()
    assert (titles[1], titles[5], line.split()[1], line.split()[5]) == ("GROUP", "SHARD", "shop", "1")
    wide = shell("jobs", "list", "--parent", str(JOB["id"]), "-o", "wide").out
    assert all(word in wide for word in ("ROUTING", "CONSISTENT_HASH", "EXECUTOR", ADDRESS, "PARENT"))
    assert shell("jobs", "list", "--parent", "12").code == 2


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
