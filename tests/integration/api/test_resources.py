"""Has a saga at a path of its own the calls that apps have, with fields of its own?"""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field, field_validator

from app.apps import APPS
from orchestrix import Resource
from orchestrix.api.sagas.models import CatalogueBody
from orchestrix.engine.control import ActionResult
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import INSTANCES
from tests.support import eventually

from .answers import BODY, problem
from .test_create import pointers
from .world import ORDER, Exchange, World

ORDER_BODY = {"orderId": "o-1", "createdBy": "ada", "amount": 12}


class NewOrder(BaseModel):
    """An order to place."""

    orderId: str = Field(max_length=250)
    createdBy: str | None = None
    amount: int | str | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @field_validator("orderId")
    @classmethod
    def _stretched(cls, value: str) -> str:
        return f"{value} " if value == "stretch" else value


class OrderBody(BaseModel):
    """One order."""

    orderId: str
    id: int
    createdBy: str
    state: str
    version: int
    createdAt: datetime
    wakeAt: datetime | None
    data: dict[str, Any]
    amount: int
    paid: bool | None = None


ORDERS = Resource(ORDER, "/orders", key_name="orderId", request=NewOrder, answer=OrderBody)


@pytest.fixture
async def world(upgraded: Path, tmp_path: Path) -> AsyncIterator[World]:
    """The API with apps and orders over an empty SQLite database."""
    database = Database(f"sqlite+aiosqlite:///{shutil.copy(upgraded, tmp_path / 'test.db')}")
    world = World(database, (APPS, ORDERS))
    yield world
    await world.client.aclose()
    await database.close()


async def placed(world: World, **more: Any) -> dict[str, Any]:
    """A new order."""
    answer = await world.client.post("/orders", json={**ORDER_BODY, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_fields_beside_the_name_are_data_and_the_answer_shows_them(world: World) -> None:
    answer = await world.client.post("/orders", json=ORDER_BODY)
    body = answer.json()
    OrderBody.model_validate(body)
    named = {"id": body["id"], "orderId": "o-1", "createdBy": "ada", "state": "UNPAID", "version": 1}
    assert body.items() >= {**named, "data": {"amount": 12}, "amount": 12, "paid": None}.items()
    assert list(body) == [*named, "createdAt", "wakeAt", "data", "amount", "paid"]
    assert len(body["createdAt"]) == len(body["wakeAt"]) == len("2026-01-31T12:00:00.000000Z")
    assert (answer.headers["location"], answer.headers["etag"]) == (f"/orders/{body['id']}", '"1"')
    assert (await world.client.get(answer.headers["location"])).json() == body
    async with world.database.read() as connection:
        (row,) = await instances.page(connection, INSTANCES, "order", instances.InstanceFilter(), "createdAt", 5, None)
    assert (row.key, row.created_by, row.data) == ("o-1", "ada", {"amount": 12})


async def test_what_is_left_out_is_no_data(world: World) -> None:
    answer = await world.client.post("/orders", json={"orderId": "o-2"})
    assert answer.json().items() >= {"createdBy": "anonymous", "data": {"amount": 0}, "amount": 0}.items()


async def test_who_is_the_holder_of_the_token_where_nobody_is_named(world: World) -> None:
    transport = httpx.ASGITransport(world.built(grace="s3cret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/orders", json={"orderId": "o"}, headers={"Authorization": "Bearer s3cret"})
    assert answer.json()["createdBy"] == "grace"


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"amount": "x"}, ["/amount"]),  # the saga's own model wants a whole number
        ({"amount": None}, ["/amount"]),
        ({"amount": 1.5}, ["/amount"]),  # the request's model refuses it
        ({"amount": None, "data": {"amount": 1.5}}, ["/data/amount"]),  # it was given more than once
        ({"data": {"colour": "red"}}, ["/data/colour"]),
        ({"data": {"amount": 3}}, ["/data/amount"]),
        ({"colour": "red"}, ["/colour"]),
        ({"orderId": 5, "createdBy": ""}, ["/orderId", "/createdBy"]),
        ({"orderId": " o"}, ["/orderId"]),
        ({"orderId": "x" * 201}, ["/orderId"]),
        ({"orderId": "stretch"}, ["/orderId"]),
        ({"data": []}, ["/data"]),
    ],
)
async def test_errors_point_at_what_the_client_has_sent(world: World, more: dict[str, Any], wrong: list[str]) -> None:
    answer = await world.client.post("/orders", json={**ORDER_BODY, **more})
    assert pointers(problem(answer, 422, "invalid_body")) == wrong
    assert not world.starter.requests


async def test_a_name_is_brought_to_nfc_and_given_once(world: World) -> None:
    first = await placed(world, orderId="Zoe\u0308")
    assert first["orderId"] == "Zo\u00eb"
    answer = await world.client.post("/orders", json={**ORDER_BODY, "orderId": "Zo\u00eb"})
    taken = problem(answer, 409, "already_exists")
    assert taken["existing"] == f"/orders/{first['id']}"
    assert (await world.client.post("/apps", json={**BODY, "appName": "Zo\u00eb"})).status_code == 200


async def test_a_repetition_gets_the_stored_answer(world: World) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = await world.client.post("/orders", json=ORDER_BODY, headers=key)
    again = await world.client.post("/orders", json=ORDER_BODY, headers=key)
    assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
    assert again.headers["location"] == first.headers["location"]
    other = await world.client.post("/orders", json={**ORDER_BODY, "amount": 13}, headers=key)
    problem(other, 422, "idempotency_key_reused")


async def test_the_list_is_filtered_and_sorted_by_the_name(world: World) -> None:
    for name in ("b", "a", "c"):
        await placed(world, orderId=name)
    page = (await world.client.get("/orders?sort=orderId&limit=2")).json()
    assert [one["orderId"] for one in page["items"]] == ["a", "b"]
    rest = await world.client.get(f"/orders?sort=orderId&limit=2&cursor={page['nextCursor']}")
    assert [one["orderId"] for one in rest.json()["items"]] == ["c"]
    assert [one["orderId"] for one in (await world.client.get("/orders?q=b")).json()["items"]] == ["b"]
    assert (await world.client.get("/orders?state=PAID")).json()["items"] == []
    problem(await world.client.get("/orders?sort=appName"), 400, "bad_parameter")


async def test_history_messages_and_events_are_below_it(world: World) -> None:
    body = await placed(world)
    path = f"/orders/{body['id']}"
    rows = (await world.client.get(f"{path}/history")).json()["items"]
    assert [(one["toState"], one["actor"]) for one in rows] == [("UNPAID", "ada")]
    sent = (await world.client.get(f"{path}/messages")).json()["items"]
    assert [one["type"] for one in sent] == ["cmd.pay"]
    async with Exchange(world.app, f"{path}/events") as exchange:
        await eventually(lambda: [event["id"] for event in exchange.events] == ["1"], deadline=5)
    problem(await world.client.get("/orders/77"), 404, "not_found")


async def test_the_verbs_answer_with_its_fields(world: World) -> None:
    world.control.answer = ActionResult(await world.started("o-1", "order", data={"amount": 12}))
    nothing: dict[str, Any] = {}
    calls = [("POST", f"/{verb}", nothing) for verb in ("retry", "skip", "pause", "resume", "cancel", "terminate")]
    calls += [("PATCH", "", {"data": {"amount": 1}}), ("PATCH", "/deadline", {"extendBy": "5m"})]
    for method, suffix, more in [*calls, ("DELETE", "/deadline", nothing)]:
        answer = await world.client.request(method, f"/orders/1{suffix}", json={"reason": "so", **more})
        assert (answer.status_code, answer.json().get("orderId")) == (200, "o-1"), (method, suffix)
        assert (world.control.actions[-1].saga, world.control.actions[-1].id) == ("order", 1)
    preview = (await world.client.post("/orders/1/pause?dryRun=true", json={"reason": "so"})).json()
    assert (preview["dryRun"], preview["order"]["orderId"]) == (True, "o-1")


async def test_an_answer_that_the_model_refuses_is_shown_as_it_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.started("o-9", "order", data={"paid": "perhaps"})
    with caplog.at_level(logging.WARNING):
        body = (await world.client.get("/orders/1")).json()
    assert body.items() >= {"orderId": "o-9", "state": "UNPAID", "paid": "perhaps"}.items()
    assert "order 1 is shown as it is, for it does not fit OrderBody" in caplog.text
    assert "perhaps" not in caplog.text


async def test_data_hide_nothing_that_every_instance_has(world: World) -> None:
    await world.started("o-9", "order", data={"amount": 1, "state": "GONE", "orderId": "other", "id": 99})
    body = (await world.client.get("/orders/1")).json()
    assert (body["id"], body["orderId"], body["state"], body["data"]["state"]) == (1, "o-9", "UNPAID", "GONE")


async def test_it_is_started_and_shown_in_both_places(world: World) -> None:
    await placed(world)
    shown = (await world.client.get("/sagas/order/1")).json()
    assert (shown["key"], shown["orderId"], shown["data"]) == ("o-1", "o-1", {"amount": 12})
    second = {"key": "o-2", "createdBy": "ada", "data": {"amount": 5}}
    answer = await world.client.post("/sagas/order", json=second)
    assert (answer.status_code, answer.headers["location"]) == (200, "/sagas/order/2"), answer.text
    assert (await world.client.get("/orders/2")).json()["orderId"] == "o-2"
    taken = await world.client.post("/sagas/order", json={**second, "key": "o-1"})
    assert problem(taken, 409, "already_exists")["existing"] == "/sagas/order/1"


async def test_apps_alone_are_not_started_as_sagas(world: World) -> None:
    answer = await world.client.post("/sagas/app", json={"key": "x", "createdBy": "ada"})
    assert problem(answer, 409, "use_apps")["detail"] == "Apps are created by POST /apps."
    assert answer.headers["link"] == '</apps>; rel="alternate"'
    call = world.app.openapi()["paths"]["/sagas/{name}"]["post"]
    assert "use_apps" in str(call["responses"]["409"])
    assert "/orders" not in call["description"]


async def test_the_catalogue_tells_where_instances_are(world: World) -> None:
    body = (await world.client.get("/sagas")).json()
    CatalogueBody.model_validate(body)
    assert {item["saga"]: item["path"] for item in body["items"]} == {"app": "/apps", "order": "/orders"}


async def test_the_document_has_its_operations_and_models(world: World) -> None:
    document = world.app.openapi()
    calls = [call for path, one in document["paths"].items() if path.startswith("/orders") for call in one.values()]
    assert {call["operationId"] for call in calls} >= {"createOrder", "listOrders", "getOrder", "whyOrder", "editOrder"}
    apps = [call for path, one in document["paths"].items() if path.startswith("/apps") for call in one.values()]
    expected = {call["operationId"].replace("App", "Order") for call in apps}
    assert {call["operationId"] for call in calls} == expected
    assert all(call["tags"] == ["orders"] for call in calls)
    assert {tag["name"] for tag in document["tags"]} >= {"apps", "orders"}
    models = document["components"]["schemas"]
    assert models.keys() >= {"NewOrder", "OrderBody", "OrderPage", "OrderPreview", "NewApp", "AppBody", "AppPage"}
    assert models["NewOrder"]["properties"]["orderId"]["maxLength"] == 200
    assert models["NewOrder"]["additionalProperties"] is False
    assert "Rises by one" in models["OrderBody"]["properties"]["version"]["description"]
    assert models["OrderPreview"]["properties"]["order"]["$ref"].endswith("/OrderBody")
    assert {"appName", "orderId"} <= models["SagaBody"]["properties"].keys()
