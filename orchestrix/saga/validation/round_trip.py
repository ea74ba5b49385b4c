"""Round trip: which defaults of a model survive JSON unchanged, and so can be data of a saga."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel, RootModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, PydanticUndefined

_NO_JSON = (PydanticSerializationError, UnicodeError, TypeError, ValueError)


def unsupported_default(model: type[BaseModel]) -> str | None:
    """A sentence about the first default, also one of a nested model, that would reach a handler as another value.

    None if there is none. A default from a factory is checked when it is made.
    """
    for owner in _models(model, set()):
        for name, field in owner.model_fields.items():
            if field.default is PydanticUndefined or field.default is None:
                continue
            if (wrong := _wrong(owner, name, field)) is not None:
                return f"the default of {owner.__name__}.{name} {wrong}: use None or no default, and set it in a step"
    return None


def written(model: BaseModel, name: str) -> Any:
    """The field as it is written in data. Raises what a serializer raises, and `KeyError` for a field that is not
    written."""
    found = model.model_dump(mode="json", by_alias=False, include={name}, exclude_none=True, warnings=False)
    return _named(getattr(model, name), found[name])


def called_in_data(name: str, field: FieldInfo) -> str | None:
    """What the field is called in data; None where it has no single name there."""
    names = names_of(field)
    return names[0] if names else name if field.validation_alias is None else None


def names_of(field: FieldInfo) -> list[str]:
    """The names that the field has in data instead of its own."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [one for one in choices if isinstance(one, str)]


def _named(value: Any, found: Any) -> Any:
    """JSON of a default, with the fields of nested models under their names in data."""
    if isinstance(value, RootModel):
        return _named(value.root, found)
    if isinstance(value, BaseModel) and isinstance(found, dict):
        return _named_fields(value, found)
    if isinstance(found, list) and isinstance(value, list | tuple) and len(value) == len(found):
        return [_named(part, one) for part, one in zip(value, found, strict=True)]
    if isinstance(found, dict) and isinstance(value, Mapping) and len(value) == len(found):
        return {key: _named(part, one) for part, (key, one) in zip(value.values(), found.items(), strict=True)}
    return found


def _named_fields(value: BaseModel, found: Mapping[str, Any]) -> dict[str, Any]:
    result = {name: part for name, part in found.items() if name in (value.model_extra or {})}
    for name, field in type(value).model_fields.items():
        called = called_in_data(name, field)
        if called is not None and name in found:
            result[called] = _named(getattr(value, name), found[name])
    return result


def _models(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """The model and those of its fields, each of them once."""
    if model not in seen:
        seen.add(model)
        yield model
        for field in model.model_fields.values():
            for part in _parts(field.annotation):
                yield from _models(part, seen)


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from _parts(one)


def _wrong(owner: type[BaseModel], name: str, field: FieldInfo) -> str | None:
    """What is wrong with the default; None for one that survives, and for one that the model itself rejects."""
    try:
        json_of_it = written(owner.model_construct(**{name: field.default}), name)
        text = json.dumps(json_of_it, allow_nan=False)
    except KeyError:
        return None  # it is excluded from what is written, or its model has a serializer of its own
    except _NO_JSON:
        return "is not JSON"
    again = _read(owner, name, field, text)
    if again is PydanticUndefined or _same(again, field.default):
        return None
    return f"comes back from JSON differently, as {text[:60]}"


def _read(owner: type[BaseModel], name: str, field: FieldInfo, text: str) -> Any:
    """The value that the model reads; undefined where that is unknown, or the model rejects it."""
    made = owner.model_construct()
    try:
        return getattr(owner.__pydantic_validator__.validate_assignment(made, name, json.loads(text)), name)
    except Exception:  # a frozen field, a strict one, or a validator that needs the other fields too
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(field.annotation)  # type: ignore[arg-type]
            return adapter.validate_json(text, strict=True)
        except Exception:
            return PydanticUndefined


def _same(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # the author's own comparison
        return False
