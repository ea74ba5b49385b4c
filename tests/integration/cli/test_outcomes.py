"""Do commands wait, ask before what cannot be undone, and tell failures apart?"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from orchestrix.cli.commands import jobs
from tests.integration.cli.fake_api import FakeApi, Reply, app, change, problem
from tests.integration.cli.samples import DEAD_LETTER, JOB, SCHEDULE
from tests.unit.cli.shell import Shell

JOBS = f"/jobs/{JOB['id']}"
LETTER = DEAD_LETTER["id"]


def page(*items: object) -> Reply:
    return Reply(body={"items": list(items), "nextCursor": None})


class Terminal:
    """A keyboard at which somebody has typed one line."""

    def __init__(self, line: str) -> None:
        self._line = line

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._line


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that puts the user at a terminal, with an answer."""

    def answer(line: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(line))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    return answer


IRREVERSIBLE = [
    ("apps terminate 42", "POST", "/apps/42/terminate", app(), "Terminate app 42? Nothing that it has done is undone."),
    (f"dlq drop {LETTER}", "DELETE", f"/dead-letters/{LETTER}", DEAD_LETTER, f"Delete dead letter {LETTER}?"),
    ("schedules delete nightly", "DELETE", "/schedules/nightly", SCHEDULE, "Delete schedule nightly?"),
    (
        "registry delete shop",
        "DELETE",
        "/registry/groups/shop",
        {"appName": "shop", "executors": []},
        "Delete the executor group of shop? Without one no job is routed to its executors.",
    ),
    ("redispatch", "POST", "/redispatch", {"redispatched": 7}, "Send 7 outstanding commands again?"),
]


@pytest.mark.parametrize(("line", "method", "path", "body", "question"), IRREVERSIBLE)
def test_what_cannot_be_undone_is_asked_on_a_terminal(
    api: FakeApi, shell: Shell, typed: Any, line: str, method: str, path: str, body: Any, question: str
) -> None:
    api.on(method, path, Reply(body=body))

    def done() -> list[Any]:
        return [one for one in api.requests if one.method == method and "dryRun" not in (one.body or {})]

    typed("\n")
    answer = shell(*line.split())
    assert (answer.code, done()) == (1, [])
    assert answer.err == f"{question} [y/N] error: not confirmed, so that nothing was changed\n"
    typed("y\n")
    assert (shell(*line.split()).code, len(done())) == (0, 1)
    typed("")
    assert (shell(*line.split(), "--yes").code, len(done())) == (0, 2)


@pytest.mark.parametrize(("line", "method", "path", "body", "question"), IRREVERSIBLE)
def test_a_script_is_not_asked(
    api: FakeApi, shell: Shell, line: str, method: str, path: str, body: Any, question: str
) -> None:
    api.on(method, path, Reply(body=body))
    answer = shell(*line.split())
    assert (answer.code, answer.err, len(api.requests)) == (0, "", 1)


def test_a_dry_run_of_redispatch_counts(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/redispatch", Reply(body={"dryRun": True, "redispatched": 2}))
    answer = shell("redispatch", "--saga", "app", "--dry-run", "--reason", "r")
    assert (answer.code, answer.out) == (0, "Dry run, nothing changed. Would send 2 commands again.\n")
    assert (api.requests[0].query, api.requests[0].body) == ({}, {"saga": "app", "reason": "r", "dryRun": True})


def test_redispatch_takes_names(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", page(app()))
    api.on("POST", "/redispatch", Reply(body={"redispatched": 2}))
    assert shell("redispatch", "--saga", "app", "3", "billing").code == 0
    assert api.requests[-1].body["ids"] == [3, 42]


def test_those_that_match_are_dropped(api: FakeApi, shell: Shell) -> None:
    other = {**DEAD_LETTER, "id": "1" + LETTER[1:]}
    api.on("GET", "/dead-letters", page(DEAD_LETTER, other))
    api.on("DELETE", f"/dead-letters/{LETTER}", Reply(body=DEAD_LETTER))
    refused = problem(409, "illegal_transition", "It is on its way.")
    api.on("DELETE", f"/dead-letters/{other['id']}", refused)
    dry = shell("dlq", "drop", "--queue", "q", "--dry-run")
    assert (dry.code, dry.out) == (0, "dead letters that match: 2\nDry run, nothing changed.\n")
    assert [one.method for one in api.requests] == ["GET"]
    assert api.requests[0].query == {"queue": ["q"], "limit": ["200"]}
    answer = shell("dlq", "drop", "--queue", "q", "--reason", "r")
    assert answer.code == 1
    assert answer.out.splitlines()[:2] == ["dead letters that match: 2", "dropped: 1"]
    assert answer.out.splitlines()[-1].split(maxsplit=1) == [other["id"], "It is on its way"]
    assert shell("dlq", "drop").code == shell("dlq", "drop", LETTER, "--all").code == 2


def test_a_failed_undo_is_not_called_going_on(api: FakeApi, shell: Shell) -> None:
    failed = change(2, "APP_INITIATED", "COMPENSATION_FAILED", "undo of createGitRepo failed")
    api.on("POST", "/apps", Reply(body=app()))
    api.on("GET", "/apps/42", Reply(body=app(2, "COMPENSATION_FAILED")))
    api.on("GET", "/apps/42/history", page(change(1, None, "APP_INITIATED"), failed))
    answer = shell("apps", "create", "billing", "--by", "ada", "--wait", "20")
    assert answer.code == 1
    assert answer.err == "error: an undo failed, and it waits for an operator: see `orchestrix apps why 42`\n"
    assert [one.path for one in api.requests].count("/apps/42") == 1, "nothing comes by itself"


def test_a_failed_try_has_no_tick(api: FakeApi, shell: Shell) -> None:
    rows = [
        change(1, None, "APP_INITIATED", "created"),
        change(2, "APP_INITIATED", "APP_INITIATED", "retry 2: CardDeclined"),
        change(3, "APP_INITIATED", "COMPLETED"),
    ]
    api.on("POST", "/apps", Reply(body=app()))
    api.on("GET", "/apps/42", Reply(body=app(3, "COMPLETED")))
    api.on("GET", "/apps/42/history", page(*rows))
    lines = shell("apps", "create", "billing", "--by", "ada", "--wait", "20").out.splitlines()[1:]
    assert [line.split()[0] for line in lines] in (["✓", "✗", "✓"], ["+", "x", "+"])


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("TIMED_OUT", 1), ("RUNNING", 6)])
def test_a_job_is_waited_for(
    api: FakeApi, shell: Shell, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    monkeypatch.setattr(jobs, "POLL_INTERVAL_S", 0.001)
    api.on("POST", "/jobs", Reply(201, {**JOB, "state": "PENDING"}))
    api.on("GET", JOBS, Reply(body={**JOB, "state": "RUNNING"}), Reply(body={**JOB, "state": state}))
    answer = shell("jobs", "submit", "q", "h", "--wait", "0.05" if code == 6 else "20")
    assert answer.code == code
    assert ("still RUNNING after 0.05 s: `orchestrix jobs logs -f" in answer.err) is (code == 6)


def test_the_log_of_a_new_job_is_followed(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/jobs", Reply(201, JOB))
    line = b'event: log\nid: 1\ndata: {"at": "2026-01-31T12:00:00.000000Z", "level": "info", "message": "page 1"}\n\n'
    api.on("GET", f"{JOBS}/logs", Reply(parts=(line, b'event: end\ndata: {"state": "SUCCEEDED"}\n\n')))
    answer = shell("jobs", "submit", "q", "h", "--follow")
    assert (answer.code, "page 1" in answer.out) == (0, True)
    assert "not allowed with" in shell("jobs", "submit", "q", "h", "--follow", "--wait").err


def test_who_submits_is_this_user_unless_a_token_says_so(
    api: FakeApi, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    api.on("POST", "/jobs", Reply(201, JOB))
    for words, sent in (([], "ada"), (["--by", "bob"], "bob"), (["--token", "geheim"], None)):
        assert shell("jobs", "submit", "q", "h", *words).code == 0
        assert api.requests[-1].body.get("createdBy") == sent


def test_jobs_of_a_schedule_and_of_an_instance(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/schedules/nightly", Reply(body=SCHEDULE))
    api.on("GET", "/sagas/order", page({**app(), "key": "o-1"}))
    api.on("GET", "/jobs", page())
    filters = "--schedule nightly --saga order --saga-id o-1"
    assert shell("jobs", "list", *filters.split()).code == 0
    assert api.requests[-1].query == {
        "scheduleId": [SCHEDULE["id"]],
        "saga": ["order"],
        "sagaId": ["42"],
    }
    assert shell("jobs", "list", "--schedule", SCHEDULE["id"]).code == 0
    assert [one.path for one in api.requests].count("/schedules/nightly") == 1, "a deleted one has its id still"
    assert api.requests[-1].query == {"scheduleId": [SCHEDULE["id"]]}
