"""Request body: what the client sent, and its validation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from orchestrix.api.problems import Problem, invalid_body
from orchestrix.api.validation_errors import pointer, wrong_fields
from orchestrix.saga.definition import InvalidDataError, Saga
from orchestrix.saga.initial_data import begun
from orchestrix.saga.messages import MAX_NESTING, UnreadableMessage, load, storable
from orchestrix.saga.validation.json_syntax import stopped
from orchestrix.saga.validation.model_errors import errors_of

M = TypeVar("M", bound=BaseModel)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in the body. Raises `Problem`: 415 for another type, 400 for what is no strict JSON, 422 else."""
    _check_type(request)
    body = await request.body()
    try:
        return load(body)
    except UnreadableMessage as refused:
        raise unreadable(body, str(refused)) from None


def unreadable(body: bytes, reason: str, wanted: str = "a JSON object") -> Problem:
    """What is wrong with a body that `load` refused for that reason: 400 for what is no strict JSON, 422 else."""
    if reason == "not-an-object":
        return invalid_body([{"pointer": "", "detail": NO_OBJECT}])
    if reason == "nul-or-lone-surrogate":
        return invalid_body([{"pointer": where, "detail": NOT_STORABLE} for where in unstorable(json.loads(body))])
    return Problem("malformed_json", _malformed(reason, body, wanted))


async def read_raw(request: Request) -> bytes:
    """The body as it came, which says that it is JSON. Raises `Problem` 415."""
    _check_type(request)
    return await request.body()


_REFUSALS: Final = {
    "not-utf8": "The body is not UTF-8, which is the only encoding that is read.",
    "too-deep": f"The body is nested too deeply: {MAX_NESTING} levels of objects and arrays are the most.",
}


def _malformed(reason: str, body: bytes, wanted: str) -> str:
    if not body.strip():
        return f"The body is empty: send {wanted}."
    kind, _, text = reason.partition(": ")
    place = stopped(text)
    if place is not None:
        return f"The body is not strict JSON at {place}."
    return _REFUSALS.get(kind) or f"The body is not strict JSON: {text[:200] or kind}."


NOT_STORABLE: Final = "must not have the NUL character or lone surrogates"
NO_OBJECT: Final = "must be an object"


async def read_perhaps(request: Request) -> dict[str, Any]:
    """The JSON object in the body, empty where there is no body. Raises as `read_object`."""
    return await read_object(request) if await request.body() else {}


def parsed(model: type[M], fields: dict[str, Any]) -> M:
    """`fields` as a `model`; raises `Problem` 422 that names every wrong field."""
    try:
        return model.model_validate(fields, strict=True)
    except ValidationError as refused:
        found = errors_of(refused, partial(model.model_validate, strict=True), fields)
        raise invalid_body(wrong_fields(found, model, fields)) from None


def checked_data(saga: Saga, data: dict[str, Any]) -> dict[str, Any]:
    """What the saga begins with, if its model accepts `data`; raises `Problem` 422 otherwise."""
    try:
        return begun(saga, data)
    except InvalidDataError as refused:
        raise invalid_body(wrong_fields(refused.errors, saga.data, data, "data")) from None


def unstorable(value: object) -> list[str]:
    """JSON pointers to the strings of `value`, or to the objects whose keys, hold what not every database keeps."""
    return [pointer(place) for place in islice(_unstorable(value, ()), 20)]


def _unstorable(value: object, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, str) and not storable(value):
        yield place
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        if isinstance(key, str) and not storable(key):
            yield place
        else:
            yield from _unstorable(child, (*place, key))


def _check_type(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Problem("unsupported_media_type", "Send JSON in UTF-8 with Content-Type: application/json.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("unsupported_media_type", "Send the body as it is, without Content-Encoding.")
