"""Is the line that `dev` shows to try one that can be tried?"""

from __future__ import annotations

import json
import shlex
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from app.apps import APPS
from orchestrix import COMPLETED, NothingToUndo, Resource, Saga, Step
from orchestrix.api.resources.requests import RequestModel
from orchestrix.cli.commands.suggested_command import first_line

UNDO = NothingToUndo("it is gone")
API = "http://127.0.0.1:8080"


class Order(BaseModel):
    """What the saga keeps."""

    amount: int = Field(lt=100)
    dueOn: date | None = None


class OrderBody(BaseModel):
    """What is shown."""

    id: int


ORDER = Saga(name="order", data=Order, steps=(Step("ship", "NEW", "cmd.ship", "evt.shipped", COMPLETED, undo=UNDO),))


def orders(examples: Any = None, base: type[BaseModel] = BaseModel, **fields: Any) -> Resource:
    """A resource whose request has these fields and examples."""
    extra: Any = {"examples": examples} if examples is not None else None

    class Base(base):  # type: ignore[misc, valid-type]
        model_config = ConfigDict(json_schema_extra=extra)

    make: Any = create_model  # mypy cannot follow fields that are given by name
    request = make("NewOrder", __base__=Base, orderId=(str, ...), **{"amount": (int, ...), **fields})
    return Resource(ORDER, "/orders", key_name="orderId", request=request, answer=OrderBody)


def sent(resource: Resource) -> Any:
    """The body of the line, which the resource takes."""
    words = shlex.split(first_line(API, resource))
    assert words[:4] == ["curl", "-X", "POST", f"{API}{resource.path}"]
    body = json.loads(words[-1])
    RequestModel.of(resource).wish(resource.saga, body, words[-1].encode(), "")
    return body


def test_the_first_example_that_is_taken_is_shown() -> None:
    good = {"orderId": "o'1", "amount": 5, "dueOn": date(2026, 1, 31)}
    resource = orders([{"orderId": "o"}, good, {**good, "amount": 6}], dueOn=(date, ...))
    assert sent(resource) == {**good, "dueOn": "2026-01-31"}


def test_else_one_is_made_up() -> None:
    assert sent(orders()) == {"orderId": "first", "amount": 1}
    assert sent(orders(["a text"])) == {"orderId": "first", "amount": 1}
    assert sent(orders([{("a", 1): 2}])) == {"orderId": "first", "amount": 1}
    assert sent(APPS) == {"appName": "billing", "createdBy": "ada"}


class Choosy(BaseModel):
    """Whose author's code breaks at what is made up."""

    @field_validator("amount", check_fields=False)
    @classmethod
    def _look(cls, value: int) -> int:
        return {5: 5}[value]


@pytest.mark.parametrize(
    "resource",
    [
        orders(amount=(int, Field(gt=10))),  # the request's model refuses it
        orders(amount=(int, Field(gt=0)), dueOn=(date, ...)),
        orders(amount=(str, ...)),  # that of the saga does
        orders([{"orderId": "o", "amount": 100}], amount=(int, Field(gt=10))),
        orders(base=Choosy),
    ],
)
def test_where_no_body_is_taken_the_documentation_is_named(resource: Resource) -> None:
    assert first_line(API, resource) == f"{API}/docs    shows what POST /orders takes"
