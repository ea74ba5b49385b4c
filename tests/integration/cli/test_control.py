"""What do the commands of a person who steps in ask of the API, and what do they show?"""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrix.cli import devfile
from tests.integration.cli.fake_api import FakeApi, Reply, app, change, problem
from tests.unit.cli.shell import Shell

WAKE_UP = {
    "saga": "app",
    "id": 42,
    "key": "billing",
    "state": "REGISTERING",
    "wakeAt": "2026-01-31T12:01:00.000000Z",
    "wakeReason": "deadline",
    "step": "registerApp",
    "attempt": 2,
    "deadlineAt": None,
}
WHY = {
    "id": 42,
    "saga": "app",
    "blocker": "no_consumer",
    "sentence": "cmd.createGitRepo has 31 messages and no consumer.",
    "nextAction": "Start a worker.",
    "since": "2026-01-31T12:00:00.000000Z",
    "nextAt": None,
}
CANCELLED = change(3, "REGISTERING", "COMPENSATING", "cancel: no")
PREVIEW = {
    "dryRun": True,
    "app": app(3, "COMPENSATING"),
    "history": [CANCELLED],
    "undo": ["registerApp", "createGitRepo"],
    "command": "cmd.unregisterApp",
}


@pytest.mark.parametrize("verb", ["retry", "skip", "pause", "resume", "cancel", "terminate"])
@pytest.mark.parametrize(("words", "path"), [(["apps"], "/apps/42"), (["sagas", "order"], "/sagas/order/42")])
def test_a_verb_is_sent_and_the_instance_shown(
    api: FakeApi, shell: Shell, verb: str, words: list[str], path: str
) -> None:
    api.on("POST", f"{path}/{verb}", Reply(body=app(3)))
    group, *saga = words
    answer = shell(group, verb, *saga, "42", "--reason", "the forge is back", "-o", "json")
    assert (answer.code, answer.err, answer.json) == (0, "", app(3))
    [request] = api.requests
    assert (request.body, request.query) == ({"reason": "the forge is back"}, {})
    assert "If-Match" not in request.headers


def test_who_gives_no_reason_is_named(api: FakeApi, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    api.on("POST", "/apps/42/pause", Reply(body=app()))
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    assert shell("apps", "pause", "42").code == 0
    assert api.requests[0].body == {"reason": "by hand (ada)"}


def test_a_number_that_is_nobody_gives_a_reason_too(
    api: FakeApi, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    api.on("POST", "/apps/42/pause", Reply(body=app()))
    monkeypatch.setattr("getpass.getuser", nobody)
    assert shell("apps", "pause", "42").code == 0
    assert api.requests[0].body == {"reason": "by hand"}


def test_skip_with_what_the_step_would_have_answered(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps/42/skip", Reply(body=app()))
    assert shell("apps", "skip", "42", "--output", '{"repository": "x"}', "--reason", "r").code == 0
    assert api.requests[0].body == {"reason": "r", "output": {"repository": "x"}}


def test_retry_sends_a_patch(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps/42/retry", Reply(body=app()))
    assert shell("apps", "retry", "42", "--data", '{"team": null}', "--reason", "r").code == 0
    assert api.requests[0].body == {"reason": "r", "data": {"team": None}}


def test_edit_sends_a_patch(api: FakeApi, shell: Shell) -> None:
    api.on("PATCH", "/apps/42", Reply(body=app()))
    assert shell("apps", "edit", "42", "--data", '{"team": null}', "--reason", "r").code == 0
    assert api.requests[0].body == {"reason": "r", "data": {"team": None}}


@pytest.mark.parametrize(
    ("arguments", "method", "path", "body"),
    [
        ("extend 42 --by 5m", "PATCH", "/apps/42/deadline", {"extendBy": "5m"}),
        ("extend 7 --saga order --by 30", "PATCH", "/sagas/order/7/deadline", {"extendBy": "30"}),
        ("extend 42 --at 2026-01-31T12:00:00Z", "PATCH", "/apps/42/deadline", {"at": "2026-01-31T12:00:00Z"}),
        ("cancel 42", "DELETE", "/apps/42/deadline", {}),
        ("cancel 7 --saga order", "DELETE", "/sagas/order/7/deadline", {}),
    ],
)
def test_deadlines_are_changed(
    api: FakeApi, shell: Shell, arguments: str, method: str, path: str, body: dict[str, Any]
) -> None:
    api.on(method, path, Reply(body=app()))
    assert shell("deadlines", *arguments.split(), "--reason", "r").code == 0
    assert api.requests[0].body == {"reason": "r", **body}


def test_deadlines_as_a_table(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/deadlines", Reply(body={"items": [WAKE_UP], "nextCursor": "c2"}))
    answer = shell("deadlines", "list", "--limit", "1", "--cursor", "c1", "--utc")
    assert api.requests[0].query == {"limit": ["1"], "cursor": ["c1"]}
    assert answer.out.splitlines()[1].split() == [
        "app",
        "42",
        "billing",
        "REGISTERING",
        "registerApp",
        "2",
        "deadline",
        "2026-01-31T12:01:00Z",
        "-",
    ]
    assert "--cursor=c2" in answer.err


def test_deadlines_in_json_are_the_page_as_it_came(api: FakeApi, shell: Shell) -> None:
    page = {"items": [WAKE_UP], "nextCursor": None}
    api.on("GET", "/deadlines", Reply(body=page))
    assert shell("deadlines", "list", "-o", "json").json == page


@pytest.mark.parametrize("verb", ["retry", "edit --data {}", "cancel"])
def test_only_at_the_version_that_was_seen(api: FakeApi, shell: Shell, verb: str) -> None:
    moved = problem(412, "version_mismatch", "It is at version 5 now.", current=5)
    word, *more = verb.split()
    api.on("PATCH" if word == "edit" else "POST", "/apps/42" if word == "edit" else f"/apps/42/{word}", moved)
    answer = shell("apps", word, "42", "--if-version", "3", *more)
    assert api.requests[0].headers["If-Match"] == '"3"'
    assert (answer.code, answer.err) == (4, "error: It is at version 5 now\n")


def test_a_dry_run_is_told_and_not_done(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps/42/cancel", Reply(body=PREVIEW))
    lines = shell("apps", "cancel", "42", "--dry-run").out.splitlines()
    assert api.requests[0].query == {"dryRun": ["true"]}
    assert lines[0] == "Dry run, nothing changed. Would do:"
    assert lines[2].split()[:3] == ["3", "REGISTERING", "COMPENSATING"]
    assert lines[2].split()[-1] == CANCELLED["actor"], "who is written then, whoever is at the keyboard"
    assert lines[3:] == ["undo, in this order: registerApp, createGitRepo", "send: cmd.unregisterApp"]
    assert shell("apps", "cancel", "42", "--dry-run", "-o", "json").json == PREVIEW


def test_a_dry_run_of_nothing(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps/42/pause", Reply(body={**PREVIEW, "history": [], "undo": [], "command": None}))
    answer = shell("apps", "pause", "42", "--dry-run")
    assert answer.out == "Nothing would change: it is so already\n"
    note = "already being undone, and an undo has failed: retry or skip it, or terminate"
    api.on("POST", "/apps/42/cancel", Reply(body={**PREVIEW, "history": [], "undo": [], "command": None, "note": note}))
    assert shell("apps", "cancel", "42", "--dry-run").out == f"Nothing would change: {note}\n"


def test_a_verb_that_does_not_fit_says_which_do(api: FakeApi, shell: Shell) -> None:
    refused = problem(409, "illegal_transition", "It is COMPLETED.", allowed=["retry", "edit"])
    api.on("POST", "/apps/42/pause", refused, problem(409, "illegal_transition", "It is COMPLETED.", allowed=[]))
    answer = shell("apps", "pause", "42")
    assert (answer.code, answer.err) == (4, "error: It is COMPLETED; possible now: retry, edit\n")
    assert shell("apps", "pause", "42").err == "error: It is COMPLETED; no actions are possible\n"


@pytest.mark.parametrize(
    ("words", "path"), [("apps why 42", "/apps/42/why"), ("sagas why order 7", "/sagas/order/7/why")]
)
def test_why_is_a_sentence_and_what_helps(api: FakeApi, shell: Shell, words: str, path: str) -> None:
    api.on("GET", path, Reply(body=WHY))
    answer = shell(*words.split())
    assert answer.code == 0
    assert answer.out.splitlines()[:2] == [
        "why    cmd.createGitRepo has 31 messages and no consumer.",
        "next   Start a worker.",
    ]
    assert "until" not in answer.out
    assert shell(*words.split(), "-o", "json").json == WHY


@pytest.mark.parametrize(
    ("saga", "action", "shown"),
    [
        (
            "order",
            "Fix the cause and `retry`, `edit` its data, or undo it by hand and `skip`.",
            "Fix the cause and `orchestrix sagas retry order 7`, `orchestrix sagas edit order 7 --data JSON` its data,"
            " or undo it by hand and `orchestrix sagas skip order 7`.",
        ),
        ("app", "`resume` it, or `cancel` it.", "`orchestrix apps resume 7` it, or `orchestrix apps cancel 7` it."),
        ("app", "Then `redispatch`; see `orchestrix doctor`.",
         "Then `orchestrix redispatch --saga app 7`; see `orchestrix doctor`."),
        ("app", "Then `retry` it: `orchestrix apps retry 7`.", "Then `retry` it: `orchestrix apps retry 7`."),
    ],
)  # fmt: skip
def test_what_helps_is_shown_as_lines_to_type(api: FakeApi, shell: Shell, saga: str, action: str, shown: str) -> None:
    base = "/apps" if saga == "app" else f"/sagas/{saga}"
    api.on("GET", f"{base}/7/why", Reply(body={**WHY, "saga": saga, "id": 7, "nextAction": action}))
    words = ["apps", "why", "7"] if saga == "app" else ["sagas", "why", saga, "7"]
    assert shell(*words).out.splitlines()[1] == f"next   {shown}"
    assert shell(*words, "-o", "json").json["nextAction"] == action


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ("", {}),
        ("--saga order", {"saga": "order"}),
        ("--saga app 3 1", {"saga": "app", "ids": [3, 1]}),
        ("3 1 --saga app", {"saga": "app", "ids": [3, 1]}),
    ],
)
def test_redispatch(api: FakeApi, shell: Shell, arguments: str, body: dict[str, Any]) -> None:
    api.on("POST", "/redispatch", Reply(body={"redispatched": 2}))
    answer = shell("redispatch", *arguments.split(), "--reason", "r")
    assert (answer.code, answer.out) == (0, "commands sent again: 2\n")
    assert api.requests[0].body == {"reason": "r", **body}
    assert shell("redispatch", *arguments.split(), "-o", "json").json == {"redispatched": 2}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["apps", "skip", "1", "--output", "[1]"], "--output must be a JSON object"),
        (["apps", "skip", "1", "--output", "{"], "--output is not JSON"),
        (["jobs", "submit", "q", "h", "--payload", "[1]"], "--payload must be a JSON object"),
        (
            ["jobs", "submit", "q", "h", "--payload", '{"x": ' + "9" * 5000 + "}"],
            "--payload is not JSON (a number has more than 4300 digits): write an object",
        ),
        (["apps", "edit", "1", "--data", "x"], "--data is not JSON"),
        (["redispatch", "1"], "--saga app"),
        (["sagas", "retry", "..", "1"], "no name of a saga"),
        (["apps", "retry", "1", "--idempotency-key", "a b"], "visible ASCII"),
    ],
)
def test_bad_input_is_refused_before_it_is_sent(api: FakeApi, shell: Shell, arguments: list[str], said: str) -> None:
    answer = shell(*arguments)
    assert answer.code == 2
    assert said in answer.err
    assert api.requests == []


@pytest.mark.parametrize("status", [401, 403])
def test_who_has_no_token_is_told_where_to_put_it(api: FakeApi, shell: Shell, status: int) -> None:
    api.on("GET", "/apps", problem(status, "unauthorized", "Who are you?"))
    answer = shell("apps", "list")
    assert (answer.code, answer.err) == (2, "error: Who are you? (set ORCHESTRIX_API__TOKEN)\n")
    assert "Authorization" not in api.requests[0].headers
    wrong = shell("apps", "list", "--token", "geheim")
    assert (wrong.code, wrong.err) == (2, "error: Who are you? (correct ORCHESTRIX_API__TOKEN)\n")


def test_the_token_goes_to_no_address_that_the_user_has_not_named(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", problem(401, "unauthorized", "Who are you?"))
    shell.set(ORCHESTRIX_API_URL="", ORCHESTRIX_API__TOKEN="geheim")
    urls = {"database_url": "sqlite+aiosqlite:////x.db", "broker_url": "amqp://x/"}
    with devfile.claimed(shell.folder):
        devfile.write(shell.folder, **urls, api_url=api.url)
        for words in ("apps list", "apps list --token flag"):
            answer = shell(*words.split())
            assert answer.code == 2
            assert "sent only to an API that you name" in answer.err
        shell("apps", "watch", "42")
        assert {request.headers.get("Authorization") for request in api.requests} == {None}
        shell("apps", "list", "--api", api.url)
    assert api.requests[-1].headers["Authorization"] == "Bearer geheim"


def test_every_call_carries_the_token(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", Reply(body={"items": [change(1, None, "A")], "nextCursor": None}))
    api.on("GET", "/apps/42/events", Reply(parts=()), Reply(404))
    api.on("POST", "/apps/42/retry", Reply(body=app()))
    shell.set(ORCHESTRIX_API__TOKEN="geheim")
    for words in ("apps watch 42", "apps retry 42", "apps show 42", "deadlines list", "redispatch"):
        assert "geheim" not in (answer := shell(*words.split())).out + answer.err
    assert {request.headers.get("Authorization") for request in api.requests} == {"Bearer geheim"}
    assert {request.path for request in api.requests} >= {"/apps/42/events", "/apps/42/retry", "/redispatch"}
    shell("apps", "retry", "42", "--token", "flag")
    assert api.requests[-1].headers["Authorization"] == "Bearer flag"


@pytest.mark.parametrize("reply", [Reply(body="hello"), Reply(body=[]), Reply(body=b"<html>"), Reply(404, b"<html>")])
@pytest.mark.parametrize(
    "words", ["apps why 42", "apps retry 42", "apps retry 42 --dry-run", "deadlines list", "redispatch"]
)
def test_a_server_that_is_none_of_ours_is_recognised(api: FakeApi, shell: Shell, words: str, reply: Reply) -> None:
    api.on("GET", "/apps/42/why", reply)
    api.on("POST", "/apps/42/retry", reply)
    api.on("GET", "/deadlines", reply)
    api.on("POST", "/redispatch", reply)
    answer = shell(*words.split())
    assert answer.code == 2
    assert "not like an Orchestrix API" in answer.err


LETTER = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"
UNCLEAR = [
    Reply(cut=True),
    Reply(502, b"<html>"),
    Reply(504, b"<html>"),
    problem(503, "outcome_unknown", "It may or may not have happened.", retry=1),
]


@pytest.mark.parametrize("reply", UNCLEAR)
def test_a_lost_answer_is_not_called_a_failure_and_can_be_asked_for_again(
    api: FakeApi, shell: Shell, reply: Reply
) -> None:
    api.on("PATCH", "/apps/42/deadline", reply, Reply(body=app(2)))
    command = ("deadlines", "extend", "42", "--by", "5m", "--reason", "r")
    answer = shell(*command)
    assert answer.code == 5
    assert "may or may not have happened" in answer.err
    [key] = re.findall(r"the same command with --idempotency-key (\S+) does it at most once", answer.err)
    assert shell(*command, "--idempotency-key", key).code == 0
    assert [request.headers["Idempotency-Key"] for request in api.requests] == [key, key]
    assert api.requests[0].body == api.requests[1].body


@pytest.mark.parametrize(
    ("words", "method", "path"),
    [
        ("apps skip 42", "POST", "/apps/42/skip"),
        ("apps edit 42 --data {}", "PATCH", "/apps/42"),
        ("deadlines cancel 42", "DELETE", "/apps/42/deadline"),
        ("redispatch", "POST", "/redispatch"),
        (f"dlq drop {LETTER}", "DELETE", f"/dead-letters/{LETTER}"),
        (f"dlq edit {LETTER} --body {{}}", "PATCH", f"/dead-letters/{LETTER}"),
        (f"dlq redrive {LETTER}", "POST", f"/dead-letters/{LETTER}/redrive"),
        ("dlq redrive --all", "POST", "/dead-letters/redrive"),
    ],
)
def test_each_command_has_a_key_of_its_own(api: FakeApi, shell: Shell, words: str, method: str, path: str) -> None:
    api.on(method, path, Reply(body=app()))
    assert [shell(*words.split()).code for _ in range(2)] == [0, 0]
    one, two = (request.headers["Idempotency-Key"] for request in api.requests)
    assert one != two


@pytest.mark.parametrize(
    ("words", "method", "path"),
    [("redispatch", "POST", "/redispatch"), (f"dlq drop {LETTER}", "DELETE", f"/dead-letters/{LETTER}")],
)
def test_others_can_be_asked_for_again_too(api: FakeApi, shell: Shell, words: str, method: str, path: str) -> None:
    api.on(method, path, Reply(cut=True), Reply(body={"redispatched": 1}))
    answer = shell(*words.split())
    [key] = re.findall(r"the same command with --idempotency-key (\S+) does it at most once", answer.err)
    assert shell(*words.split(), "--idempotency-key", key).code == 0
    assert [request.headers["Idempotency-Key"] for request in api.requests] == [key, key]


def test_what_is_clear_has_no_key_to_repeat(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps/42/skip", problem(503, "unavailable", "Nothing was changed. Try again.", retry=1))
    answer = shell("apps", "skip", "42")
    assert (answer.code, answer.err) == (5, "error: Nothing was changed. Retry in 1 s\n")


@pytest.mark.parametrize(("status", "code"), [(408, 5), (421, 2), (429, 5)])
def test_what_stands_at_the_door_has_its_exit_code(api: FakeApi, shell: Shell, status: int, code: int) -> None:
    api.on("GET", "/apps", problem(status, "x", "Not so."))
    answer = shell("apps", "list")
    assert (answer.code, answer.err) == (code, "error: Not so\n")
