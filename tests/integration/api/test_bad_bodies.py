"""Does every call that takes a body say in our own words what is wrong with it?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from app.apps import APPS, NewApp
from orchestrix.api.app import own_operations
from orchestrix.api.operations import Operation
from orchestrix.api.registry.models import AppQuery, ExecutorBody
from orchestrix.api.resources import routes as resources
from orchestrix.api.sagas import routes as sagas
from orchestrix.errors import NotFound
from orchestrix.saga.actions.apply import InvalidActionError
from orchestrix.saga.definition import InvalidDataError

from .world import ORDER, SERVED_APPS, World

CALLS = [*resources.operations_of(SERVED_APPS), *sagas.operations_of([APPS]), *own_operations()]
# What has a token of its own is tried in test_job_reports: that comes before the body.
ROUTES = [route for route in CALLS if route.body is not None and not route.own_token]
PATH = {
    "app": "shop",
    "id": "1",
    "name": "order",
    "job": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "letter": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "node": "node-1",
    "schedule": "nightly",
}
WRONG: tuple[Any, ...] = (5, -1.5, True, None, "", "x", [], [5], {}, {"x": 5})
MODELS: set[type[BaseModel]] = {NewApp, *(route.body for route in ROUTES if route.body is not None)}
NAMES = "|".join(sorted({model.__name__ for model in MODELS}))
FOREIGN = re.compile(
    r"Input should|Field required|Extra inputs|not permitted|valid (string|integer|dictionary|list|number)|instance of"
    rf"|Value error|Assertion failed|unable to|dict\[|NoneType|pydantic|Expecting|\b({NAMES})\b"
)


def example(model: type[BaseModel]) -> dict[str, Any]:
    """A body that is accepted."""
    more: Any = model.model_config.get("json_schema_extra")
    (found,) = more["examples"]
    return dict(found)


def missing(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same with one field less, at each place."""
    for name, value in body.items():
        yield {other: body[other] for other in body if other != name}
        if isinstance(value, dict):
            yield from ({**body, name: one} for one in missing(value))


def extra(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same with one field more, at each place."""
    yield {**body, "colour": "red"}
    for name, value in body.items():
        yield {**body, f"{name}s": value}
        if isinstance(value, dict):
            yield from ({**body, name: one} for one in extra(value))


def wrong(body: dict[str, Any], model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """The same with something of another kind in each place."""
    for name in {*body, *(field.alias or key for key, field in model.model_fields.items())}:
        yield from ({**body, name: value} for value in WRONG)
        if isinstance(below := body.get(name), dict):
            yield from ({**body, name: {**below, inner: value}} for inner in below for value in WRONG)


async def refusals(world: World, route: Operation, bodies: Iterator[dict[str, Any]]) -> list[Mapping[str, str]]:
    """What is said of the fields of these bodies."""
    path = re.sub(r"\{(\w+)(?::path)?\}", lambda part: PATH[part[1]], route.path)
    query = {"app": "shop"} if route.query is AppQuery else {}
    found: list[Mapping[str, str]] = []
    for body in bodies:
        answer = await world.client.request(route.method, path, params=query, json=body)
        assert answer.status_code < 500, (body, answer.text)
        if answer.status_code == 422:
            told = answer.json()
            assert not FOREIGN.search(answer.text), (body, told)
            assert re.search(r"[^.?!][.?]$", told["detail"]), told
            found += told["errors"]
    return found


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_a_wrong_body_is_told_in_our_own_words(world: World, route: Operation) -> None:
    assert route.body is not None
    world.control.answer = NotFound("there is none")
    body = example(route.body)
    needed = [field.alias or name for name, field in route.body.model_fields.items() if field.is_required()]
    found = await refusals(world, route, missing(body))
    told = {one["pointer"] for one in found if one["detail"].startswith("is missing: send ")}
    assert told >= {f"/{name}" for name in needed}
    found = await refusals(world, route, extra(body))
    unknown = {one["pointer"] for one in found if one["detail"].startswith("is not known here")}
    assert ("/colour" in unknown) is not issubclass(route.body, ExecutorBody)  # executors may be newer than this API
    found = await refusals(world, route, wrong(body, route.body))
    assert [one for one in found if one["detail"].startswith("must be ")], found


def test_every_body_has_its_route() -> None:
    models = {route.body for route in ROUTES}
    assert len(ROUTES) > 20
    assert len(models) > 12


async def test_the_data_of_a_saga_are_told_of_in_the_same_way(world: World) -> None:
    for data, sentence in (
        ({"amount": "many"}, "data/amount must be a whole number."),
        ({"amounts": 5}, "data/amounts is not known here: did you mean amount?"),
        ({"amount": None, "x": 1}, "data/amount must be a whole number; data/x is not known here; known is amount."),
    ):
        answer = await world.client.post("/sagas/order", json={"key": "a", "createdBy": "ada", "data": data})
        assert (answer.status_code, answer.json()["detail"]) == (422, sentence)


async def test_what_the_model_refuses_of_an_edit_and_of_an_output_is_told_so_too(world: World) -> None:
    with pytest.raises(InvalidDataError) as refused:
        ORDER.check({"amount": "many", "amounts": 1})
    errors = refused.value.errors
    world.control.answer = refused.value
    answer = await world.client.patch("/sagas/order/1", json={"reason": "r", "data": {"amount": "many"}})
    told = {"/amount": "must be a whole number", "/amounts": "is not known here: did you mean amount?"}
    assert {one["pointer"]: one["detail"] for one in answer.json()["errors"]} == {
        f"/data{place}": sentence for place, sentence in told.items()
    }
    world.control.answer = InvalidDataError([{**error, "loc": ("output", *error["loc"])} for error in errors])
    answer = await world.client.post("/sagas/order/1/skip", json={"reason": "r", "output": {"amount": "many"}})
    assert {one["pointer"]: one["detail"] for one in answer.json()["errors"]} == {
        f"/output{place}": sentence for place, sentence in told.items()
    }
    world.control.answer = InvalidActionError("output", "must be left out here")
    answer = await world.client.post("/sagas/order/1/skip", json={"reason": "r", "output": {}})
    assert answer.json()["errors"] == [{"pointer": "/output", "detail": "must be left out here"}]
