"""What do the commands about dead letters ask of the API, and what do they show?"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.fake_api import FakeApi, Reply, problem
from tests.integration.cli.samples import DEAD_LETTER
from tests.unit.cli.shell import Shell

ID = DEAD_LETTER["id"]
PATH = f"/dead-letters/{ID}"
FULL = {**DEAD_LETTER, "body": {"appId": 1}, "bodyEncoding": "json", "headers": {}}


def test_a_list_as_a_table(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/dead-letters", Reply(body={"items": [DEAD_LETTER], "nextCursor": "c2"}))
    filters = "--queue q --saga order --app 7 --died-of not-json --redriven --limit 1 --cursor c1"
    answer = shell("dlq", "list", *filters.split())
    assert answer.code == 0
    assert api.requests[0].query == {
        "queue": ["q"],
        "saga": ["order"],
        "appId": ["7"],
        "reason": ["not-json"],
        "redriven": ["true"],
        "limit": ["1"],
        "cursor": ["c1"],
    }
    head, line = answer.out.splitlines()
    assert head.split()[:3] == ["ID", "QUEUE", "KEY"]
    assert line.split()[:6] == [ID, "evt.appRegistered", "evt.appRegistered", "app", "-", "not-json:"]
    assert "--cursor=c2" in answer.err
    for line in ("orchestrix dlq edit ID --body JSON", "orchestrix dlq redrive ID", "orchestrix dlq drop ID"):
        assert f"`{line}`" in answer.err, "what can be done about them"
    api.on("GET", "/dead-letters", Reply(body={"items": [], "nextCursor": None}))
    assert shell("dlq", "list").err == ""


def test_a_list_in_json_is_the_page_as_it_came(api: FakeApi, shell: Shell) -> None:
    page = {"items": [DEAD_LETTER], "nextCursor": None}
    api.on("GET", "/dead-letters", Reply(body=page))
    assert shell("dlq", "list", "-o", "json").json == page
    assert api.requests[0].query == {}


def test_one_is_shown(api: FakeApi, shell: Shell) -> None:
    api.on("GET", PATH, Reply(body=FULL))
    assert '{"appId": 1}' in shell("dlq", "show", ID.upper()).out
    assert shell("dlq", "show", ID, "-o", "json").json == FULL


def test_a_body_is_changed(api: FakeApi, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.on("PATCH", PATH, Reply(body=FULL))
    place = tmp_path / "body.json"
    place.write_text('{"appId": 2}')
    monkeypatch.setattr("sys.stdin", io.StringIO('{"appId": 3}'))
    for n, given in enumerate((("--body", '{"appId": 1}'), ("--file", str(place)), ("--file", "-")), start=1):
        assert shell("dlq", "edit", ID, *given, "--reason", "r", "-o", "json").json == FULL
        assert api.requests[-1].body == {"body": {"appId": n}, "reason": "r"}


def test_one_is_sent_again(api: FakeApi, shell: Shell) -> None:
    api.on("POST", f"{PATH}/redrive", Reply(body=FULL))
    assert shell("dlq", "redrive", ID, "--reason", "r", "-o", "json").json == FULL
    assert api.requests[0].body == {"reason": "r"}


@pytest.mark.parametrize(
    ("arguments", "chosen", "dry"),
    [
        ("--queue q", {"queue": "q"}, False),
        ("--saga app --app 3 --died-of not-json --dry-run", {"saga": "app", "appId": 3, "reason": "not-json"}, True),
        ("--all", {}, False),
    ],
)
def test_those_that_fit_are_sent_again(
    api: FakeApi, shell: Shell, arguments: str, chosen: dict[str, Any], dry: bool
) -> None:
    done = {"dryRun": dry, "matched": 2, "redriven": 2, "refused": []}
    api.on("POST", "/dead-letters/redrive", Reply(body=done))
    answer = shell("dlq", "redrive", *arguments.split(), "--reason", "r")
    assert (answer.code, answer.out) == (
        0,
        f"dead letters that match: 2\n{'Dry run, nothing changed.' if dry else 'sent again: 2'}\n",
    )
    assert api.requests[0].body == {"filter": chosen, "reason": "r", "dryRun": dry}
    assert shell("dlq", "redrive", *arguments.split(), "-o", "json").json == done


def test_those_that_cannot_be_sent_are_named(api: FakeApi, shell: Shell) -> None:
    done = {"dryRun": False, "matched": 2, "redriven": 1, "refused": [{"id": ID, "reason": "too long"}]}
    api.on("POST", "/dead-letters/redrive", Reply(body=done))
    answer = shell("dlq", "redrive", "--all")
    assert answer.code == 1
    assert answer.out.splitlines()[-1].split(maxsplit=1) == [ID, "too long"]


def test_one_is_forgotten(api: FakeApi, shell: Shell) -> None:
    api.on("DELETE", PATH, Reply(body=FULL))
    assert shell("dlq", "drop", ID, "--reason", "rubbish").code == 0
    assert api.requests[0].body == {"reason": "rubbish"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["redrive"], "which ones?"),
        (["redrive", ID, "--all"], "leave out"),
        (["redrive", ID, "--queue", "q"], "leave out"),
        (["edit", ID, "--body", "[1]"], "--body must be a JSON object"),
        (["edit", ID, "--file", "/nowhere/x"], "cannot be read"),
    ],
)
def test_bad_input_is_refused_before_it_is_sent(api: FakeApi, shell: Shell, arguments: list[str], says: str) -> None:
    answer = shell("dlq", *arguments)
    assert (answer.code, says in answer.err) == (2, True)
    assert api.requests == []


@pytest.mark.parametrize(("status", "code"), [(404, 3), (409, 4), (503, 5)])
def test_exit_codes(api: FakeApi, shell: Shell, status: int, code: int) -> None:
    api.on("POST", f"{PATH}/redrive", problem(status, "x", "It cannot be sent.", allowed=["edit", "drop"]))
    answer = shell("dlq", "redrive", ID)
    assert (answer.code, "possible now: edit, drop" in answer.err) == (code, True)
