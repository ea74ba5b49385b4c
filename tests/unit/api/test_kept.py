"""Is a request refused at definition whose fields would be stored otherwise than they are sent?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    JsonValue,
    PlainSerializer,
    Secret,
    SecretBytes,
    SecretStr,
    field_serializer,
    model_serializer,
)
from typing_extensions import TypeAliasType, TypedDict

from orchestrix import DefinitionError, Saga
from orchestrix.api.resources.requests import RequestModel
from orchestrix.saga.messages import dump

from .test_resources import ORDER, model, resource

FREE = Saga(name="free", steps=ORDER.steps)
BODY = {"orderId": "o", "createdBy": "ada", "amount": 1}
Pin = TypeAliasType("Pin", SecretStr)


def shown(value: SecretStr) -> str:
    """What its author wants to be stored."""
    return value.get_secret_value()


class Card(BaseModel):
    """A part of a request that keeps its number."""

    number: SecretStr


class Hiding(BaseModel):
    """A part of a request that leaves something out."""

    inner: str = Field(exclude=True)


class Renamed(BaseModel):
    """A part of a request that is written under another name than it is read."""

    inner: str = Field(validation_alias=AliasChoices("a", "b"))


class Typed(TypedDict):
    """Fields of no model."""

    number: SecretStr


@dataclass
class Data:
    """Fields of no model either."""

    number: list[SecretBytes]


class Whole(model()):  # type: ignore[misc]
    """Writes itself."""

    @model_serializer
    def _write(self) -> dict[str, Any]:
        return {"amount": 1}


class Numbered(model()):  # type: ignore[misc]
    """Has a name that is written as a number."""

    @field_serializer("orderId")
    def _write(self, value: str) -> int:
        return len(value)


class Revealed(model(card=SecretStr)):  # type: ignore[misc]
    """Says how its secret is stored."""

    @field_serializer("card")
    def _write(self, value: SecretStr) -> str:
        return shown(value)


@pytest.mark.parametrize(
    ("request_model", "said"),
    [
        (model(card=(str, Field(exclude=True))), "NewOrder.card is excluded.*take its exclude away"),
        (model(card=(str, Field(exclude_if=lambda value: not value))), "NewOrder.card is excluded"),
        (model(orderId=(str, Field(exclude=True))), "NewOrder.orderId is excluded"),
        (model(createdBy=(str, Field(exclude=True))), "NewOrder.createdBy is excluded"),
        (model(card=SecretStr), "NewOrder.card is a SecretStr, of which stars would be stored: make it a str"),
        (model(card=SecretBytes | None), "NewOrder.card is a SecretBytes"),
        (model(card=Secret[int]), "NewOrder.card is a Secret"),
        (model(card=dict[str, list[SecretStr]]), "NewOrder.card is a SecretStr"),
        (model(card=Pin), "NewOrder.card is a SecretStr"),
        (model(orderId=SecretStr), "NewOrder.orderId is a SecretStr"),
        (model(data=dict[str, SecretStr]), "NewOrder.data is a SecretStr"),
        (model(card=list[Card]), "Card.number is a SecretStr"),
        (model(card=Typed), "Typed.number is a SecretStr"),
        (model(card=Data), "Data.number is a SecretBytes"),
        (model(card=Hiding), "Hiding.inner is excluded"),
        (model(card=Renamed), "Renamed.inner must have one name in JSON"),
        (Whole, "Whole must have no model_serializer"),
        (Numbered, "Numbered.orderId must be written as a text"),
    ],
)
def test_what_would_not_be_stored_as_it_was_sent_is_refused(request_model: type[BaseModel], said: str) -> None:
    with pytest.raises(DefinitionError, match=rf"Resource\('/orders'\): {said}"):
        RequestModel.of(resource(saga=FREE, request=request_model))


@pytest.mark.parametrize(
    ("request_model", "sent"),
    [
        (Revealed, "4711"),
        (model(card=Annotated[SecretStr, PlainSerializer(shown)]), "4711"),
        (model(card=list[Annotated[SecretStr, PlainSerializer(shown)]]), ["4711"]),
        (model(card=JsonValue), {"a": [None, 1.5]}),
        (model(card=date | Decimal), "2026-01-31"),
        (model(card=(str, Field(json_schema_extra={"writeOnly": True, "format": "password"}))), "4711"),
    ],
)
def test_what_is_stored_as_it_was_sent_is_taken(request_model: type[BaseModel], sent: Any) -> None:
    body = {**BODY, "card": sent}
    found = RequestModel.of(resource(saga=FREE, request=request_model)).wish(FREE, body, dump(body), "")
    assert (found.key, found.created_by, found.data) == ("o", "ada", {"amount": 1, "card": sent})
