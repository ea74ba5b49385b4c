"""Which resources are refused, with which sentence, and what is their noun?"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from app.apps import APPS
from orchestrix import COMPLETED, DefinitionError, NothingToUndo, Resource, Saga, Step
from orchestrix.api.app import check, own_operations
from orchestrix.api.problems import Problem
from orchestrix.api.resources import schemas
from orchestrix.api.resources.names import noun_of
from orchestrix.api.resources.requests import RequestModel
from orchestrix.api.resources.routes import Served, served
from orchestrix.resource import OWN_PATHS
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.messages import dump
from orchestrix.saga.transition import SagaStart, numbered
from orchestrix.saga.transition import start as begin
from sagas.app_provisioning import APP_PROVISIONING


class Data(BaseModel):
    """What the saga keeps."""

    amount: int
    note: str | None = None


class NewOrder(BaseModel):
    """An order to place."""

    orderId: str
    createdBy: str
    amount: int


class OrderBody(BaseModel):
    """One order."""

    id: int
    orderId: str


def saga(name: str = "order", data: type[BaseModel] = Data) -> Saga:
    """One step long."""
    undo = NothingToUndo("it is gone")
    return Saga(name=name, data=data, steps=(Step("ship", "NEW", f"cmd.{name}", f"evt.{name}", COMPLETED, undo=undo),))


ORDER = saga()


def resource(path: str = "/orders", **more: Any) -> Resource:
    """Orders, or something like it."""
    fields = {"saga": ORDER, "key_name": "orderId", "request": NewOrder, "answer": OrderBody, **more}
    return Resource(path=path, **fields)


def serve(*found: Resource) -> tuple[Served, ...]:
    """All that is done with resources before the first request."""
    catalog = Catalog({id(one.saga): one.saga for one in found}.values())
    check(found, catalog)
    return served(found, catalog)


def model(name: str = "NewOrder", base: type[BaseModel] = NewOrder, **fields: Any) -> type[BaseModel]:
    """Like `base`, with other fields: annotation, or annotation and default."""
    values = {key: one[1] for key, one in fields.items() if isinstance(one, tuple)}
    kinds = {key: one[0] if isinstance(one, tuple) else one for key, one in fields.items()}
    made: Any = type(base)
    found: type[BaseModel] = made(name, (base,), {"__annotations__": kinds, "__module__": __name__, **values})
    return found


@pytest.mark.parametrize("path", [f"/{name}" for name in sorted(OWN_PATHS)])
def test_a_path_of_our_own_is_taken(path: str) -> None:
    with pytest.raises(DefinitionError, match=f"'{path}'.*is reserved by the API"):
        resource(path)


def test_all_our_own_paths_are_known() -> None:
    first = {operation.path.split("/")[1] for operation in own_operations()}
    assert first <= OWN_PATHS


@pytest.mark.parametrize("path", ["orders", "/Orders", "/orders/", "/a/b", "/", "/openapi.json", "/1", 5])
def test_a_path_is_one_part_in_lower_case(path: Any) -> None:
    with pytest.raises(DefinitionError, match="path must be like /orders"):
        resource(path)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"saga": "order"}, "saga must be a Saga"),
        ({"request": dict}, "request must be a pydantic model"),
        ({"answer": OrderBody(id=1, orderId="a")}, "answer must be a pydantic model"),
        ({"answer": NewOrder}, "request and answer have the same name, NewOrder"),
        ({"key_name": "name"}, "NewOrder has no field 'name'"),
        ({"key_name": "id"}, "key_name cannot be 'id'"),
        ({"key_name": "createdBy"}, "key_name cannot be 'createdBy'"),
    ],
)
def test_what_can_be_seen_at_once_is_refused_at_once(more: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        resource(**more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"request": model(orderId=int)}, "NewOrder.orderId must be a text"),
        ({"request": model(orderId=(str, "x"))}, "NewOrder.orderId must have no default"),
        ({"request": model(createdBy=list[str])}, "NewOrder.createdBy must be a text"),
        ({"request": model(data=list[int])}, "NewOrder.data must be an object"),
        ({"request": model(state=str)}, "NewOrder.state would be data, but every instance has 'state'"),
        ({"request": model(amount=(int, Field(validation_alias=AliasChoices("a", "b"))))}, "NewOrder.amount must have"),
        ({"answer": model("OrderBody", OrderBody, total=int)}, "OrderBody.total is required.*give it a default"),
        ({"answer": model("OrderBody", OrderBody, note=str)}, "OrderBody.note is required"),
        ({"saga": saga(data=model("Data", Data, colour=str))}, "Data.colour is required, and NewOrder has no field"),
        ({"answer": model("ProblemBody", OrderBody)}, "there is another model ProblemBody"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(more: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=rf"Resource\('/orders'\): {said}"):
        serve(resource(**more))


def test_what_is_there_from_the_beginning_can_be_required() -> None:
    (known,) = serve(
        resource(answer=model("OrderBody", OrderBody, amount=int, version=int, deadlineAt=datetime | None))
    )
    free = saga(data=model("Data", Data, colour=(str, "red")))
    (defaulted,) = serve(resource(saga=free, answer=model("OrderBody", OrderBody, colour=str)))
    assert [one.resource.path for one in (known, defaulted)] == ["/orders", "/orders"]


def test_two_cannot_share_a_path_or_a_saga() -> None:
    with pytest.raises(DefinitionError, match="two resources at this path"):
        serve(resource(), resource(saga=saga("other")))
    with pytest.raises(DefinitionError, match="'order' is at /orders already"):
        serve(resource(), resource("/purchases"))


@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        ("/apps", {}, "this path belongs to the saga 'app', not to 'order'"),
        ("/orders", {"saga": APP_PROVISIONING}, "the saga 'app' is served at /apps only"),
        ("/apps", {"saga": APP_PROVISIONING}, "key_name must be 'appName' at /apps"),
    ],
)
def test_apps_are_at_their_path_alone_and_have_it_alone(path: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        resource(path, **more)


@pytest.mark.parametrize(
    ("examples", "written"),
    [
        ([{"orderId": "o", "amount": 1, "dueOn": date(2026, 1, 31)}], '"dueOn": "2026-01-31"'),
        ([{"orderId": OrderBody}], "OrderBody"),
        (["a text"], '"a text"'),
        ({"one": {"orderId": "o"}}, '{"one"'),
        ([], "[]"),
    ],
)
def test_examples_of_any_form_come_into_the_document(examples: Any, written: str) -> None:
    request = model(dueOn=date)
    request.model_config["json_schema_extra"] = {"examples": examples}
    request.model_rebuild(force=True)
    made = serve(resource(saga=saga(data=model("Data", Data, dueOn=(str, ""))), request=request))
    assert written in json.dumps(schemas.of_resource(made[0])["NewOrder"]["examples"])


def test_the_saga_must_be_known() -> None:
    with pytest.raises(DefinitionError, match="this process has no saga 'order': name its module in `sagas`"):
        served([resource()], Catalog([APP_PROVISIONING]))


def test_operations_and_models_are_called_once() -> None:
    other = saga("other")
    with pytest.raises(DefinitionError, match=r"operation .*Order.* would be there twice"):
        serve(resource(), resource("/order", saga=other))
    with pytest.raises(DefinitionError, match="there is another model NewOrder"):
        serve(resource(), resource("/purchases", saga=other, request=model(amount=(int, 5))))
    with pytest.raises(DefinitionError, match=r"operation .*Job.* would be there twice"):
        serve(resource("/job"))
    assert serve(resource(), APPS)


@pytest.mark.parametrize(
    ("path", "one", "many", "name", "member"),
    [
        ("/apps", "an app", "apps", "App", "app"),
        ("/orders", "an order", "orders", "Order", "order"),
        ("/line-items", "a line item", "line items", "LineItem", "lineItem"),
        ("/categories", "a category", "categories", "Category", "category"),
        ("/staff", "a staff", "staff", "Staff", "staff"),
        ("/glass", "a glass", "glass", "Glass", "glass"),
        ("/s", "a s", "s", "S", "s"),
        ("/ies", "an ies", "ies", "Ies", "ies"),
        ("/key-s", "a key s", "key s", "KeyS", "keyS"),
        ("/s-", "a s", "s", "S", "s"),
    ],
)
def test_the_noun_is_that_of_the_path(path: str, one: str, many: str, name: str, member: str) -> None:
    noun = noun_of(path)
    assert (noun.a_one, noun.many, noun.name, noun.member) == (one, many, name, member)


def test_a_preview_keeps_its_own_fields() -> None:
    (one,) = serve(resource("/notes"))
    assert one.preview.model_fields.keys() >= {"note", "instance"}


def wish(found: Resource, body: dict[str, Any]) -> Any:
    """Which instance the body asks for."""
    return RequestModel.of(found).wish(found.saga, body, dump(body), "somebody")


def test_the_rules_for_names_hold_whatever_the_model_says() -> None:
    lax = model(orderId=(str, Field(min_length=0, max_length=1000)))
    lax.model_config["str_strip_whitespace"] = True
    for name, detail in [(" a", "must not begin or end"), ("x" * 201, "1 to 200 code points, not 201"), ("", "not 0")]:
        with pytest.raises(Problem) as refused:
            wish(resource(request=lax), {"orderId": name, "createdBy": "ada", "amount": 1})
        assert refused.value.members["errors"][0]["pointer"] == "/orderId"
        assert detail in refused.value.members["errors"][0]["detail"]


def test_a_stricter_model_has_its_way() -> None:
    strict = model(orderId=(str, Field(pattern="^o-")))
    with pytest.raises(Problem, match="orderId must be a text of 1 to 200 code points that fits"):
        wish(resource(request=strict), {"orderId": "x", "createdBy": "ada", "amount": 1})


def test_names_in_json_are_the_aliases() -> None:
    class Camel(BaseModel):
        """Python's names in Python, JSON's in JSON."""

        model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

        order_id: str
        created_by: str
        due_on: datetime
        item: UUID

    body = {"orderId": "o", "createdBy": "ada", "dueOn": "2026-01-31T12:00:00Z", "item": str(UUID(int=5))}
    free = Saga(name="free", steps=ORDER.steps)
    found = wish(resource(saga=free, request=Camel), body)
    assert (found.key, found.created_by, found.data) == ("o", "ada", {"dueOn": body["dueOn"], "item": body["item"]})
    with pytest.raises(Problem, match="order_id is not known here: did you mean orderId"):
        wish(resource(saga=free, request=Camel), {**body, "order_id": "o"})


def test_a_model_may_take_fields_that_nobody_has_named() -> None:
    free = Saga(name="free", steps=ORDER.steps)
    request = model()
    request.model_config["extra"] = "allow"
    found = wish(resource(saga=free, request=request), {"orderId": "o", "createdBy": "a", "amount": 1, "colour": "red"})
    assert found.data == {"amount": 1, "colour": "red"}


def test_times_have_six_digits_also_where_the_model_writes_them() -> None:
    answer = model("OrderBody", OrderBody, createdAt=datetime, deadlineAt=datetime | None, amount=int)
    (one,) = serve(resource(answer=answer))
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    wanted = SagaStart(key="o", created_by="ada", correlation_id="c", data={"amount": 1})
    instance = numbered(ORDER, begin(ORDER, wanted, "m-1", noon), 5).instance
    shown = one.answer.view(instance)
    assert shown == {
        "id": 5,
        "orderId": "o",
        "createdAt": "2026-01-31T12:00:00.000000Z",
        "deadlineAt": None,
        "amount": 1,
    }
