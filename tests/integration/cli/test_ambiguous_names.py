"""Is a number that is the id of one instance and the name of another refused, and is there a way to write each?"""

from __future__ import annotations

import re
import shlex
from typing import Final

import pytest

from orchestrix.cli.nouns import TABLE
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand
from tests.integration.cli.fake_api import FakeApi, Reply, Request, app, change, problem
from tests.unit.cli.shell import Shell

MORE: Final = (
    "redispatch --saga app 1",
    "redispatch --saga order 1",
    "jobs list --saga-id 1",
    "dlq list --app 1",
    "dlq list --saga order --app 1",
    "dlq redrive --app 1",
    "dlq drop --app 1 --dry-run",
)
"""Commands that take an instance beside those whose path has it."""


def of_an_instance() -> list[str]:
    """The examples of all commands of an instance, each with the id 1."""
    commands: list[ShellCommand] = []
    for entry in TABLE:
        commands += entry.commands if isinstance(entry, CommandGroup) else (entry,)
    found = [one.example for one in commands if one.request.partition(" ")[2].startswith("{base}/{id}")]
    assert len(found) == 26
    return [*found, *MORE]


@pytest.fixture
def both(api: FakeApi) -> FakeApi:
    """An API in which 1 is the id of `shop`, and the name of the instance with the id 7."""
    for base, name in (("/apps", "appName"), ("/sagas/order", "key")):
        named = {"appName": None, "key": None, name: "1"}
        api.on("GET", base, Reply(body={"items": [{**app(), **named, "id": 7}], "nextCursor": None}))
        api.on("GET", f"{base}/1", Reply(body={**app(), **named, "id": 1, name: "shop"}))
        for id in (1, 7):
            ended = {"items": [change(1, None, "COMPLETED")], "nextCursor": None}
            api.on("GET", f"{base}/{id}/history", Reply(body=ended))
            api.on("GET", f"{base}/{id}/messages", Reply(body={"items": [], "nextCursor": None}))
    return api


@pytest.mark.parametrize("line", of_an_instance())
def test_a_number_that_is_both_is_refused_by_each_command(both: FakeApi, shell: Shell, line: str) -> None:
    kind = "order instance" if "order" in line else "app"
    answer = shell(*shlex.split(line))
    said = f"1 is the id of {kind} 'shop' and the name of {kind} 7: write id:1 or name:1"
    assert (answer.code, answer.err) == (2, f"error: {said}\n")
    assert {(one.method, one.path) for one in both.requests} <= {("GET", "/apps/1"), ("GET", "/sagas/order/1")}


def written(line: str, prefix: str) -> list[str]:
    return [f"{prefix}1" if word == "1" else word for word in shlex.split(line)]


@pytest.mark.parametrize("line", of_an_instance())
@pytest.mark.parametrize(("prefix", "id"), [("id:", 1), ("name:", 7)])
def test_its_prefix_says_which_one_is_meant(both: FakeApi, shell: Shell, line: str, prefix: str, id: int) -> None:
    answer = shell(*written(line, prefix))
    assert answer.code != 2, answer.err
    assert {found for request in both.requests for found in meant(request)} == {str(id)}
    assert prefix == "name:" or not both.look_ups


def meant(request: Request) -> list[str]:
    """The ids of instances in a request."""
    body = request.body or {}
    path = re.fullmatch(r"/(?:apps|sagas/order)/(\d+)(?:/.*)?", request.path)
    filters = [*request.query.get("sagaId", ()), *request.query.get("appId", ())]
    sent = [*body.get("ids", ()), *(value for key, value in body.get("filter", {}).items() if key == "appId")]
    return [*([path[1]] if path else ()), *filters, *map(str, sent)]


@pytest.mark.parametrize(
    ("text", "name"),
    [("name:shop", "shop"), ("name:42", "42"), ("name:id:42", "id:42"), ("name:name:x", "name:x"), ("name:", "")],
)
def test_a_name_is_what_follows_the_prefix(api: FakeApi, shell: Shell, text: str, name: str) -> None:
    api.on("GET", "/apps", Reply(body={"items": [app(appName=name)], "nextCursor": None}))
    api.on("GET", "/apps/42", Reply(body=app()))
    answer = shell("apps", "show", text)
    if name:
        assert answer.code == 0, answer.err
        assert [*api.look_ups, *api.requests][0].query["q"] == [name]
    else:
        assert (answer.code, answer.err) == (2, "error: an empty text is neither an id nor a name\n")


@pytest.mark.parametrize("text", ["id:shop", "id:", "id:0", "id:-1"])
def test_what_is_no_id_is_refused_as_one(api: FakeApi, shell: Shell, text: str) -> None:
    answer = shell("apps", "terminate", text)
    said = f"error: {text.removeprefix('id:')!r} is not an id; what is named {text!r} is name:{text}\n"
    assert (answer.code, answer.err, api.requests) == (2, said, [])


def test_an_id_of_nothing_is_not_taken_for_a_name(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", Reply(body={"items": [app(appName="7")], "nextCursor": None}))
    answer = shell("apps", "show", "id:7")
    assert (answer.code, answer.err) == (3, "error: no app with id 7\n")


def test_an_instance_whose_name_is_its_own_id_is_meant_by_both(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", Reply(body={"items": [app(appName="42")], "nextCursor": None}))
    api.on("GET", "/apps/42", Reply(body=app(appName="42")))
    api.on("POST", "/apps/42/pause", Reply(body=app()))
    assert shell("apps", "pause", "42").code == 0


def test_dead_letters_of_a_saga_that_the_api_does_not_know_are_found_by_its_ids(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/sagas/gone", problem(404, "not_found", "Unknown saga 'gone'."))
    api.on("GET", "/dead-letters", Reply(body={"items": [], "nextCursor": None}))
    assert shell("dlq", "list", "--saga", "gone", "--app", "3").code == 0
    assert api.requests[-1].query["appId"] == ["3"]


@pytest.mark.parametrize("text", ["3", "id:3"])
def test_a_saga_that_the_api_does_not_know_is_named(api: FakeApi, shell: Shell, text: str) -> None:
    api.on("GET", "/sagas/gone", problem(404, "not_found", "Unknown saga 'gone'."))
    answer = shell("sagas", "show", "gone", text)
    assert (answer.code, answer.err) == (3, "error: Unknown saga 'gone'\n")
