"""Initial data: the data with which a saga begins, from what the client sent and the defaults of its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, RootModel

from orchestrix.saga.definition import InvalidDataError, Saga
from orchestrix.saga.messages import MAX_BODY, UnreadableMessage, dump, load
from orchestrix.saga.validation.round_trip import called_in_data, names_of, written

_MISSING = object()


def begun(saga: Saga, data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` and, of what it leaves out, the defaults of the saga's model; raises `InvalidDataError` for what the model
    rejects.

    Defaults are computed once: every step, and every try of it, sees the same; those of nested models are included.
    What is given stays as it is written, and a default of None is left out. So is one that would not survive a JSON
    round trip, or that the model itself would reject as data.
    """
    model, given = saga.read(data), dict(data)
    full = _filled(model, given)
    if full == given or _round_trips(saga, full, model, None):
        return full
    if len(dump(full)) > MAX_BODY:  # else defaults would be missing that its handlers rely on
        text = f"with the defaults of the model it exceeds {MAX_BODY} bytes: send less"
        raise InvalidDataError([{"loc": (), "msg": text, "type": "too_large"}])
    kept = dict(given)
    for name in type(model).model_fields:
        key = _key(type(model), name, full)
        if key is not None and full[key] != given.get(key, _MISSING):
            one = {**given, key: full[key]}
            kept |= {key: full[key]} if _round_trips(saga, one, model, name) else {}
    return kept if _round_trips(saga, kept, model, "") else given


def _round_trips(saga: Saga, data: dict[str, Any], model: BaseModel, name: str | None) -> bool:
    """Whether the model accepts `data` and reproduces its values: of all, of the one field, or of none ('')."""
    try:
        again = saga.read(load(dump(data)))
        if name is None:
            return bool(again == model)
        return not name or bool(getattr(again, name) == getattr(model, name))
    except (InvalidDataError, UnreadableMessage, ValueError, TypeError):
        return False


def _filled(model: BaseModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the defaults of `model`, and of nested models, that it leaves out."""
    result = dict(given)
    for name, field in type(model).model_fields.items():
        key, value = _key(type(model), name, given), getattr(model, name, None)
        if key is not None:
            result[key] = _within(value, given[key])
        elif value is not None and name not in model.model_fields_set:
            called, found = called_in_data(name, field), _default(model, name)
            if called is not None and found is not _MISSING:
                result[called] = found
    return result


def _within(value: Any, given: Any) -> Any:
    """What was given for a field, with the defaults of nested models."""
    if isinstance(value, RootModel):
        return _within(value.root, given)
    if isinstance(given, dict):
        if isinstance(value, BaseModel):
            return _filled(value, given)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _filled_dataclass(value, given)
        if isinstance(value, Mapping) and len(value) == len(given):
            return {key: _within(part, one) for part, (key, one) in zip(value.values(), given.items(), strict=True)}
    elif isinstance(given, list) and isinstance(value, list | tuple) and len(value) == len(given):
        return [_within(part, one) for part, one in zip(value, given, strict=True)]
    return given


def _filled_dataclass(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(given)
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if field.name in given:
            result[field.name] = _within(part, given[field.name])
        elif part is not None and isinstance(part, str | int | float | bool):
            result[field.name] = part
    return result


def _default(model: BaseModel, name: str) -> Any:
    """The field as JSON; missing where it is not JSON, whatever its own serializer returns."""
    try:
        return written(model, name)
    except Exception:
        return _MISSING


def _key(model: type[BaseModel], name: str, given: Mapping[str, Any]) -> str | None:
    """Under which of its names the field is given; under its own only where the model reads that."""
    field, config = model.model_fields[name], model.model_config
    own = field.validation_alias is None or config.get("populate_by_name") or config.get("validate_by_name")
    return next((one for one in (*names_of(field), *([name] if own else [])) if one in given), None)
