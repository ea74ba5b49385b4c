"""Does the API have what the commands of the shell ask it for?"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from orchestrix.cli import main
from orchestrix.cli.nouns import TABLE
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand
from tests.unit.cli.shell import clear_environment, logging_kept

COMPUTED = {"when", "*"}
"""Columns that the shell makes itself."""
BY_RESOURCE = {"appName"}
"""Fields of an instance under a path of its own, where the generic one has `key`."""


def commands(table: Sequence[Any], before: str = "") -> Iterator[tuple[str, ShellCommand]]:
    for one in table:
        if isinstance(one, CommandGroup):
            yield from commands(one.commands, f"{before}{one.name} ")
        elif one.request:
            yield f"{before}{one.name}", one


COMMANDS = dict(commands(TABLE))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `openapi` prints in an empty folder. No test changes it."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, logging_kept():
        clear_environment(patch)
        patch.chdir(tmp_path_factory.mktemp("openapi"))
        with contextlib.redirect_stdout(out):
            assert main(["openapi"]) == 0
    return json.loads(out.getvalue())


def resolved(document: Any, schema: Any) -> Any:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def fields(document: Any, schema: Any) -> set[str]:
    """The properties of the schema, and those of all its alternatives."""
    schema = resolved(document, schema)
    found = set(schema.get("properties", {}))
    for kind in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(kind, ()):
            found |= fields(document, one)
    return found


def items(document: Any, schema: Any) -> set[str]:
    """The properties of the items of a page."""
    schema = resolved(document, schema)
    found: set[str] = set()
    for kind in ("anyOf", "oneOf"):
        for one in schema.get(kind, ()):
            found |= items(document, one)
    listed = schema.get("properties", {}).get("items")
    return found | (fields(document, listed["items"]) if listed else set())


def operation(document: Any, request: str) -> Any:
    method, _, path = request.partition(" ")
    wanted = re.sub(r"{[^}]+}", "{}", path.replace("{base}", "/sagas/{saga}"))
    paths = {re.sub(r"{[^}]+}", "{}", one): found for one, found in document["paths"].items()}
    return paths.get(wanted, {}).get(method.lower())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_api_has_the_request_its_options_and_its_columns(document: Any, name: str) -> None:
    command = COMMANDS[name]
    found = operation(document, command.request or "")
    assert found is not None, command.request
    query = {one["name"] for one in found.get("parameters", ()) if one["in"] == "query"}
    headers = {one["name"] for one in found.get("parameters", ()) if one["in"] == "header"}
    content = found.get("requestBody", {}).get("content", {}).values()
    body = set().union(*(fields(document, one["schema"]) for one in content))
    for option in command.flat:
        if option.to.startswith("?"):
            assert option.to[1:] in query, option.flags
        elif option.to:
            assert option.to.split(".")[0] in body | BY_RESOURCE, option.flags
    assert not command.keyed or "Idempotency-Key" in headers
    if isinstance(command.view, tuple):
        shown = items(document, found["responses"]["200"]["content"]["application/json"]["schema"])
        for column in command.view:
            assert {field.partition(".")[0] for field in column.fields} & (shown | COMPUTED | BY_RESOURCE), column.head
