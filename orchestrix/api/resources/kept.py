"""Kept fields: whether a request's model writes what the client has sent, so that it is stored as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, NamedTuple, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, PlainSerializer, Secret, SecretBytes, SecretStr, WrapSerializer
from pydantic.fields import FieldInfo

from orchestrix.saga.validation.round_trip import called_in_data

_SECRETS: Final = (Secret, SecretBytes, SecretStr)
_SERIALIZERS: Final = (PlainSerializer, WrapSerializer)
_MARKS: Final = ("__required_keys__", "_fields")
"""What TypedDict and NamedTuple have, also those of `typing_extensions`."""
_PROBE: Final = "probe"


class _Part(NamedTuple):
    """A field of the request, or of something in it."""

    owner: type
    name: str
    annotation: Any
    field: FieldInfo | None
    """None for those of a TypedDict, a NamedTuple or a dataclass that is not pydantic's."""

    @property
    def place(self) -> str:
        return f"{self.owner.__name__}.{self.name}"


def lost(model: type[BaseModel]) -> str | None:
    """A sentence about the first field that would be stored otherwise than it was sent; None if there is none.

    What an author's own serializer of a field makes of it is his wish.
    """
    if model.__pydantic_decorators__.model_serializers:
        return f"{model.__name__} must have no model_serializer, which may leave fields out: use field_serializer"
    for part in _parts_of(model, set()):
        if part.field is not None and (part.field.exclude or getattr(part.field, "exclude_if", None)):
            return f"{part.place} is excluded from what is written, and so would be lost: take its exclude away"
        if part.field is not None and called_in_data(part.name, part.field) != _written_name(part.name, part.field):
            return f"{part.place} must have one name in JSON: give it a plain alias"
        if not _is_serialized(part) and (secret := _secret(part.annotation)):
            return (
                f"{part.place} is a {secret}, of which stars would be stored: make it a str, or add a field_serializer"
            )
    return None


def writes_text(model: type[BaseModel], name: str) -> bool:
    """Whether a text in that field is written as one; true where its serializer refuses what it is tried with."""
    values: dict[str, Any] = {name: _PROBE}
    made = model.model_construct(**values)
    try:
        written = made.model_dump(mode="json", by_alias=False, include={name}, warnings=False)
    except Exception:  # of the author's own code
        return True
    return isinstance(written.get(name), str)


def _written_name(name: str, field: FieldInfo) -> str:
    return field.serialization_alias or name


def _is_serialized(part: _Part) -> bool:
    """Whether the author says how it is written."""
    if part.field is not None and any(isinstance(one, _SERIALIZERS) for one in part.field.metadata):
        return True
    decorators = getattr(part.owner, "__pydantic_decorators__", None)
    found = decorators.field_serializers.values() if decorators is not None else ()
    return any({part.name, "*"} & set(one.info.fields) for one in found)


def _parts_of(owner: type, seen: set[type]) -> Iterator[_Part]:
    """The fields of `owner` and of all that is in them."""
    if owner in seen:
        return
    seen.add(owner)
    for name, annotation, field in _fields(owner):
        yield _Part(owner, name, annotation, field)
        for one in _classes(annotation):
            yield from _parts_of(one, seen)


def _fields(owner: type) -> Iterator[tuple[str, Any, FieldInfo | None]]:
    known = getattr(owner, "__pydantic_fields__", None)
    if isinstance(known, Mapping):
        yield from ((name, field.annotation, field) for name, field in known.items())
    elif is_dataclass(owner) or any(hasattr(owner, mark) for mark in _MARKS):
        yield from ((name, one, None) for name, one in _hints(owner).items())


def _hints(owner: type) -> dict[str, Any]:
    try:
        return get_type_hints(owner, include_extras=True)
    except Exception:  # a name that is known within a function alone
        return {}


def _classes(annotation: Any, aliases: frozenset[int] = frozenset()) -> Iterator[type]:
    """Every class in it, but for what a serializer in it writes. `aliases` are those that it stands in."""
    arguments = get_args(annotation)
    if id(annotation) in aliases or any(isinstance(one, _SERIALIZERS) for one in arguments):
        return
    if hasattr(annotation, "__value__"):
        yield from _classes(annotation.__value__, aliases | {id(annotation)})
    if isinstance(found := get_origin(annotation) or annotation, type):
        yield found
    for one in arguments:
        yield from _classes(one, aliases)


def _secret(annotation: Any) -> str | None:
    """The name of the first type in it that hides what it holds."""
    found = (one for one in _classes(annotation) if issubclass(one, cast("Any", _SECRETS)))
    return next((one.__name__ for one in found), None)
