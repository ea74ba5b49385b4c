"""What do `apps …` and `sagas …` ask of the API, and what do they show?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrix.cli import saga_watch
from tests.integration.cli.fake_api import FakeApi, Reply, app, change, event, problem
from tests.integration.cli.samples import JOB
from tests.unit.cli.shell import Shell

CREATED = change(1, None, "APP_INITIATED", "created")
MADE = change(2, "APP_INITIATED", "GIT_REPO_CREATED", "evt.gitRepoCreated")
MOVED = change(3, "GIT_REPO_CREATED", "REGISTERING", "immediate")
DONE = change(4, "REGISTERING", "COMPLETED", "evt.appRegistered")
BROKEN = change(2, "APP_INITIATED", "FAILED", "evt.stepFailed: disk full")


def page(*items: Any, cursor: str | None = None) -> Reply:
    return Reply(body={"items": list(items), "nextCursor": cursor})


def test_create_sends_name_creator_data_and_key(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps", Reply(body=app(data={"team": "blue"})))
    arguments = ["apps", "create", "billing", "--by", "ada", "--data", '{"team": "blue"}', "--idempotency-key", "k1"]
    answer = shell(*arguments, "-o", "json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json == app(data={"team": "blue"})
    [request] = api.requests
    assert request.body == {"appName": "billing", "createdBy": "ada", "data": {"team": "blue"}}
    assert request.headers["Idempotency-Key"] == "k1"


def test_create_of_any_saga(api: FakeApi, shell: Shell) -> None:
    order = {**app(), "saga": "order", "key": "o-1"}
    api.on("POST", "/sagas/order", Reply(body=order))
    answer = shell("sagas", "create", "order", "o-1", "--by", "ada")
    assert answer.code == 0
    assert api.requests[0].body == {"key": "o-1", "createdBy": "ada"}
    assert ["key", "o-1"] in [line.split() for line in answer.out.splitlines()]


def test_create_and_wait_shows_every_state_and_ends_with_0(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps", Reply(body=app()))
    api.on("GET", "/apps/42", Reply(body=app(3, "REGISTERING")), Reply(body=app(4, "COMPLETED")))
    api.on("GET", "/apps/42/history", page(CREATED), page(CREATED, MADE, MOVED), page(CREATED, MADE, MOVED, DONE))
    answer = shell("apps", "create", "billing", "--by", "ada", "--wait", "20")
    assert (answer.code, answer.err) == (0, "")
    assert [line.split()[1] for line in answer.out.splitlines()] == [
        "42",
        "APP_INITIATED",
        "GIT_REPO_CREATED",
        "REGISTERING",
        "COMPLETED",
    ]
    polls = [request.query for request in api.requests if request.path == "/apps/42"]
    assert [poll["sinceVersion"] for poll in polls] == [["1"], ["3"]]
    assert all(int(poll["wait"][0].removesuffix("s")) <= 20 for poll in polls)


def test_wait_answers_1_for_a_failed_saga_and_says_why(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps", Reply(body=app()))
    api.on("GET", "/apps/42", Reply(body=app(2, "FAILED")))
    api.on("GET", "/apps/42/history", page(CREATED, BROKEN))
    answer = shell("apps", "create", "billing", "--by", "ada", "--wait")
    assert answer.code == 1
    assert "disk full" in answer.out


def test_wait_in_json_is_the_final_document_alone(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps", Reply(body=app()))
    api.on("GET", "/apps/42", Reply(body=app(4, "COMPLETED")))
    answer = shell("apps", "create", "billing", "--by", "ada", "--wait", "-o", "json")
    assert (answer.code, answer.json["state"]) == (0, "COMPLETED")


def test_a_wait_that_is_over_says_how_to_go_on(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps", Reply(body=app()))
    api.on("GET", "/apps/42", Reply(body=app()))
    api.on("GET", "/apps/42/history", page(CREATED))
    answer = shell("apps", "create", "billing", "--by", "ada", "--wait", "0.1s")
    assert answer.code == 6
    assert "`orchestrix apps watch 42` follows it, `orchestrix apps why 42` says what it waits for" in answer.err


def test_a_wait_survives_a_restart_of_the_api(api: FakeApi, shell: Shell) -> None:
    away = problem(503, "unavailable", "The database is away.", retry=1)
    api.on("POST", "/apps", Reply(body=app()))
    api.on("GET", "/apps/42", away, Reply(cut=True), Reply(502, b"<html>"), Reply(body=app(4, "COMPLETED")))
    api.on("GET", "/apps/42/history", away, page(CREATED, MADE, MOVED, DONE))
    answer = shell("apps", "create", "billing", "--by", "ada", "--wait", "20")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count("COMPLETED") == 1


def test_list_asks_by_the_names_of_http(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", page(app(), app(4, "COMPLETED", id=43, appName="日本"), cursor="c2"))
    filters = {
        "--created-by": "createdBy",
        "--created-after": "createdAfter",
        "--created-before": "createdBefore",
        "--q": "q",
        "--sort": "sort",
        "--cursor": "cursor",
    }
    values = {name: "2026-01-31T12:00:00+01:00" if "After" in name or "Before" in name else f"ä {name}+&"
              for name in filters.values()}  # fmt: skip
    given = [word for flag, name in filters.items() for word in (flag, values[name])]
    answer = shell("apps", "list", "--state", "FAILED", "--state", "COMPLETED", "--limit", "2", *given)
    expected = {name: [value] for name, value in values.items()}
    assert api.requests[0].query == {**expected, "state": ["FAILED", "COMPLETED"], "limit": ["2"]}
    assert [line.split()[:2] for line in answer.out.splitlines()] == [["ID", "NAME"], ["42", "billing"], ["43", "日本"]]
    assert "--cursor=c2" in answer.err, "the hint must not get into a pipe"


def test_list_of_what_is_stuck(api: FakeApi, shell: Shell) -> None:
    for saga in ("apps", "sagas/order"):
        api.on("GET", f"/{saga}", page())
        assert shell(*saga.split("/")[:1], "list", *saga.split("/")[1:], "--stuck").code == 0
        assert api.requests[-1].query == {"stuck": ["true"]}
    waits = app(3, "REGISTERING", attempt=2, blocker="held", wakeReason="deadline", wakeAt=None)
    api.on("GET", "/apps", page(waits))
    head, row = shell("apps", "list", "--stuck").out.splitlines()
    assert head.split() == ["ID", "NAME", "STATE", "ATTEMPT", "BLOCKER", "WAITING", "FOR", "NEXT", "SINCE", "AGE"]
    assert row.split()[:7] == ["42", "billing", "REGISTERING", "2", "held", "deadline", "-"]


def test_list_in_json_is_the_page_as_it_came(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/sagas/order", page({"id": 1, "unknown": ["x"]}, cursor="c2"))
    assert shell("sagas", "list", "order", "-o", "json").json == {
        "items": [{"id": 1, "unknown": ["x"]}],
        "nextCursor": "c2",
    }
    assert api.requests[0].query == {}


def test_history_follows_its_pages(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(CREATED, cursor="n"), page(MADE))
    answer = shell("apps", "history", "42", "-o", "json")
    assert answer.json == {"items": [CREATED, MADE]}
    assert [request.query for request in api.requests] == [{}, {"cursor": ["n"]}]


def test_history_as_a_table(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(CREATED, MADE))
    lines = shell("apps", "history", "42").out.splitlines()
    assert lines[0].split() == ["VERSION", "FROM", "TO", "REASON", "ACTOR", "WHEN"]
    assert lines[1].split()[:4] == ["1", "-", "APP_INITIATED", "created"]


def test_messages_as_a_table(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/sagas/order/7/messages", page({"kind": "command", "type": "cmd.x", "lastAt": None, "count": 1}))
    lines = shell("sagas", "messages", "order", "7").out.splitlines()
    assert [line.split() for line in lines] == [["KIND", "TYPE", "LAST", "COUNT"], ["command", "cmd.x", "-", "1"]]


def test_traces_of_messages_and_changes_are_shown_where_there_is_room(api: FakeApi, shell: Shell) -> None:
    message = {"kind": "command", "type": "cmd.x", "traceId": "4bf9"}
    api.on("GET", "/sagas/order/7/messages", page(message), page(message))
    api.on("GET", "/apps/42/history", page({**CREATED, "traceId": "4bf9"}), page({**CREATED, "traceId": "4bf9"}))
    for words in (["sagas", "messages", "order", "7"], ["apps", "history", "42"]):
        assert "4bf9" not in shell(*words).out
        assert "4bf9" in shell(*words, "-o", "wide").out


def test_where_other_tools_show_it(api: FakeApi, shell: Shell) -> None:
    links = {"trace": "https://traces.example/4bf9", "logs": "https://logs.example/?q=c-1"}
    api.on("GET", "/apps/42", *[Reply(body=app(traceId="4bf9", links=links))] * 2)
    lines = [line.split() for line in shell("apps", "show", "42").out.splitlines()]
    assert [["traceId", "4bf9"], ["trace", links["trace"]], ["logs", links["logs"]]] == lines[-3:]
    assert shell("apps", "show", "42", "-o", "json").json["links"] == links
    api.on("GET", "/apps/42/why", Reply(body={"sentence": "It works.", "links": links}))
    assert shell("apps", "why", "42").out.splitlines() == [
        "why    It works.",
        "trace  https://traces.example/4bf9",
        "logs   https://logs.example/?q=c-1",
    ]
    api.on("GET", f"/jobs/{JOB['id']}", Reply(body={**JOB, "links": {"logs": links["logs"]}}))
    assert ["logs", links["logs"]] in [line.split() for line in shell("jobs", "show", str(JOB["id"])).out.splitlines()]


def test_what_others_wrote_does_not_steer_the_terminal(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42", Reply(body=app(data={"x": "\x1b[2J"}, createdBy="\x1b]0;me\x07")))
    assert "\x1b" not in shell("apps", "show", "42").out


def test_watch_shows_what_was_and_what_comes_and_ends_with_the_saga(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(CREATED))
    api.on("GET", "/apps/42/events", Reply(parts=(b": hi\n\n", event(CREATED), event(MADE), event(MOVED), event(DONE))))
    answer = shell("apps", "watch", "42", "-o", "json")
    assert answer.code == 0
    assert [json.loads(line)["version"] for line in answer.out.splitlines()] == [1, 2, 3, 4]
    assert api.requests[-1].headers["Last-Event-ID"] == "1"


def test_watch_comes_back_where_it_was_cut_off(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(CREATED), problem(503, "unavailable", "Away."), page(CREATED, MADE))
    cut = Reply(parts=(event(MADE), event(MOVED)[:-20]), headers={"Content-Length": "9999"})
    api.on("GET", "/apps/42/events", cut, Reply(parts=(event(MOVED), event(DONE))))
    answer = shell("apps", "watch", "42")
    assert (answer.code, answer.err) == (0, "")
    assert [line.split()[1] for line in answer.out.splitlines()] == ["v1", "v2", "v3", "v4"]
    assert api.requests[-1].headers["Last-Event-ID"] == "2"


def test_watch_gives_up_on_an_api_that_stays_away(api: FakeApi, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saga_watch, "RECONNECT_TIMEOUT_S", 0.1)
    api.on("GET", "/apps/42/history", page(CREATED), problem(503, "unavailable", "Away."))
    api.on("GET", "/apps/42/events", Reply(cut=True))
    answer = shell("apps", "watch", "42")
    assert (answer.code, answer.err) == (5, "error: Away\n")


def test_watch_of_one_that_has_failed_long_ago(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(CREATED, BROKEN))
    answer = shell("apps", "watch", "42")
    assert answer.code == 1
    assert "disk full" in answer.out


def test_watch_when_there_is_nothing_more_to_come(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/42/history", page(CREATED), page(CREATED, MADE, MOVED, DONE))
    api.on("GET", "/apps/42/events", Reply(204))
    assert shell("apps", "watch", "42").code == 0


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 2), (404, 3), (409, 4), (412, 4), (413, 2), (415, 2), (422, 2), (500, 1), (503, 5)],
)
@pytest.mark.parametrize("command", [["apps", "create", "x", "--by", "y"], ["apps", "list"]])
def test_the_exit_code_tells_the_kind_of_error(
    api: FakeApi, shell: Shell, command: list[str], status: int, code: int
) -> None:
    wrong = problem(status, "some_code", "This is wrong.", errors=[{"pointer": "/appName", "detail": "is too long"}])
    api.on("POST" if "create" in command else "GET", "/apps", wrong)
    answer = shell(*command, "-o", "json")
    assert (answer.code, answer.out) == (code, "")
    assert answer.err == "error: This is wrong; appName is too long\n"


def test_what_is_wrong_with_a_field_is_said_once(api: FakeApi, shell: Shell) -> None:
    fields = [
        {"pointer": "/appName", "detail": "must have 1 to 200 code points, not 0"},
        {"pointer": "/data/x", "detail": "is missing: send a text"},
    ]
    detail = "appName must have 1 to 200 code points, not 0; data/x is missing: send a text."
    api.on("POST", "/apps", problem(422, "invalid_body", detail, errors=fields))
    answer = shell("apps", "create", "", "--by", "y")
    assert answer.err == "error: appName must have 1 to 200 code points, not 0; data/x is missing: send a text\n"


def test_when_to_try_again_is_said(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/1", problem(503, "unavailable", "Away.", retry=7))
    assert shell("apps", "show", "1").err == "error: Away. Retry in 7 s\n"
    api.on("GET", "/apps/1", problem(503, "unavailable", "It is full; nothing was changed. Retry in 1 s.", retry=1))
    assert shell("apps", "show", "1").err == "error: It is full; nothing was changed. Retry in 1 s\n"


@pytest.mark.parametrize("reply", [Reply(body="hello"), Reply(body=b"<html>"), Reply(404, b"<html>"), Reply(301, {})])
@pytest.mark.parametrize("command", ["list", "show 1", "history 1", "messages 1", "watch 1", "create x --by y"])
def test_a_server_that_is_none_of_ours_is_recognised(api: FakeApi, shell: Shell, command: str, reply: Reply) -> None:
    for path in ("/apps", "/apps/1", "/apps/1/history", "/apps/1/messages"):
        api.on("GET", path, reply)
    api.on("POST", "/apps", reply)
    answer = shell("apps", *command.split())
    assert answer.code == 2
    assert "not like an Orchestrix API" in answer.err


def test_a_lost_answer_is_not_called_a_failure(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps", Reply(cut=True))
    answer = shell("apps", "create", "x", "--by", "y")
    assert answer.code == 5
    assert "may or may not have happened" in answer.err


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--data", "[1]"], "object"),
        (["--data", "{"], "JSON"),
        (["--data", '{"a": NaN}'], "NaN"),
        (["--data", "[" * 100_000], "JSON"),
        (["--data", '{"a": 1e999}'], "JSON"),
        (["--idempotency-key", ""], "visible ASCII"),
        (["--idempotency-key", "a b"], "visible ASCII"),
        (["--idempotency-key", "x" * 256], "visible ASCII"),
    ],
)
def test_bad_input_is_refused_before_it_is_sent(api: FakeApi, shell: Shell, extra: list[str], said: str) -> None:
    answer = shell("apps", "create", "x", "--by", "y", *extra)
    assert answer.code == 2
    assert said in answer.err
    assert api.requests == []


@pytest.mark.parametrize("name", ["..", "", "\udcff"])
def test_a_saga_name_cannot_lead_elsewhere(api: FakeApi, shell: Shell, name: str) -> None:
    assert shell("sagas", "list", name).code == 2
    assert api.requests == []


def test_a_strange_saga_name_stays_in_its_place(api: FakeApi, shell: Shell) -> None:
    assert shell("sagas", "list", "../apps?x#é").code == 3
    assert api.requests[0].path == "/sagas/..%2Fapps%3Fx%23%C3%A9"


def test_bytes_that_are_no_text_reach_the_api_as_json(api: FakeApi, shell: Shell) -> None:
    api.on("POST", "/apps", problem(422, "invalid_body", "No."))
    assert shell("apps", "create", "\udcff", "--by", "y").code == 2
    assert api.requests[0].body["appName"] == "\udcff"
    assert shell("apps", "list", "--q", "\udcff").code == 2


@pytest.mark.parametrize("command", ["apps list", "apps show 1", "apps create x --by y", "sagas watch order 1"])
def test_an_api_that_nobody_named_is_not_guessed(shell: Shell, command: str) -> None:
    answer = shell(*command.split())
    assert answer.code == 2
    assert answer.err.startswith(
        "error: No API address given: set --api or ORCHESTRIX_API_URL, or run `orchestrix dev` in this folder ("
    )


def test_nobody_there_says_how_to_start_it(shell: Shell) -> None:
    answer = shell("apps", "list", "--api", "http://127.0.0.1:1")
    assert answer.code == 5
    assert "orchestrix dev" in answer.err
    assert answer.err.count("\n") == 1


def test_a_dead_dev_is_exit_code_5(shell: Shell) -> None:
    (shell.folder / ".orchestrix").mkdir()
    (shell.folder / ".orchestrix" / "dev.lock").touch()
    (shell.folder / ".orchestrix" / "dev.json").write_text(
        '{"pid": 1, "startedAt": "", "databaseUrl": "d", "brokerUrl": "b", "apiUrl": "http://127.0.0.1:1"}'
    )
    for command in (["apps", "list"], ["worker"], ["serve"], ["db", "current"]):
        answer = shell(*command)
        assert (answer.code, "orchestrix dev" in answer.err) == (5, True)


def test_the_password_in_an_api_url_is_not_shown(shell: Shell) -> None:
    answer = shell("apps", "list", "--api", "http://me:secret@127.0.0.1:1")
    assert answer.code == 5
    assert "secret" not in answer.err


def test_a_shell_without_a_project_hears_how_to_get_one(api: FakeApi, shell: Shell) -> None:
    said = "There is nothing at '/apps': no resource is configured. Run `orchestrix init`."
    api.on("GET", "/apps", problem(404, "not_found", said))
    ended = shell("apps", "list")
    assert ended.code == 3
    assert "no resource is configured. Run `orchestrix init`" in ended.err
