"""Requests: what a client may send to create an instance of a resource, and which instance that is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from orchestrix.api import patterns
from orchestrix.api.instances.start import NewInstance
from orchestrix.api.problems import invalid_body
from orchestrix.api.resources.kept import lost, writes_text
from orchestrix.api.schema_text import form_of
from orchestrix.api.validation_errors import pointer, wrong_fields
from orchestrix.api.values import DATA_ABOUT, NAME_ABOUT
from orchestrix.resource import CREATED_BY, DATA, FIXED, Resource
from orchestrix.saga.definition import InvalidDataError, Saga
from orchestrix.saga.initial_data import begun
from orchestrix.saga.messages import dump
from orchestrix.saga.validation.model_errors import errors_of
from orchestrix.saga.validation.names import MAX_NAME_LENGTH, normal
from orchestrix.saga.validation.round_trip import called_in_data

_PLAIN: Final = (str, dict[str, Any])
TWICE: Final = "stands outside of data already: send it once"


class _Named:
    """Marks the field of a name: the rules for names come first, whatever else the model wants of it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_normal, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        if found.get("type") == "string":
            found["minLength"] = max(1, found.get("minLength", 1))
            found["maxLength"] = min(MAX_NAME_LENGTH, found.get("maxLength", MAX_NAME_LENGTH))
            found.setdefault("pattern", patterns.NAME)
        return {"description": NAME_ABOUT, **found}


class _Data:
    """Marks the field of the data, for the OpenAPI document."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"description": DATA_ABOUT, **handler(schema)}


@dataclass(frozen=True, slots=True)
class RequestModel:
    """The model of a resource's requests, made once. All names are those that the fields have in JSON."""

    resource: Resource
    model: type[BaseModel]
    names: Mapping[str, str]
    """By the names of the model's fields."""
    top: frozenset[str]
    """The fields that are data and stand beside the name."""
    plain: bool
    """Whether it has texts and an object alone, which are what was sent: they need not be written to be read."""

    @classmethod
    def of(cls, resource: Resource) -> RequestModel:
        """Raises `DefinitionError`."""
        names = {name: _called(resource, name, field) for name, field in resource.request.model_fields.items()}
        top = frozenset(names.values()) - {resource.key_name, CREATED_BY, DATA}
        model = _derived(resource, names)
        plain = not top and model.model_config["extra"] != "allow" and not is_customized(model)
        plain = plain and all(field.annotation in _PLAIN for field in model.model_fields.values())
        found = cls(resource, model, names, top, plain)
        found._check()
        return found

    def wish(self, saga: Saga, body: Mapping[str, Any], raw: bytes, who: str) -> NewInstance:
        """Which instance `body`, as it was read of `raw`, asks for on behalf of `who`. Raises `Problem` 422."""
        found = self._parsed(body, raw)
        written = self._written(found)
        key = _name(written.pop(self.resource.key_name), self.resource.key_name, body)
        created_by = _name(written.pop(CREATED_BY, None), CREATED_BY, body)
        data = written.pop(DATA, None) or {}
        if written:
            data = _joined(data, self._given(found, written))
        return NewInstance(key, created_by or who, self._checked(saga, data))

    def _written(self, found: BaseModel) -> dict[str, Any]:
        if self.plain:
            return {called: getattr(found, name) for name, called in self.names.items()}
        return found.model_dump(mode="json", by_alias=True, warnings=False)

    def begins_with(self) -> set[str]:
        """The fields of data that are there from the beginning, whatever a client sends."""
        fields = {self.names[name]: field for name, field in self.model.model_fields.items()}
        return {name for name in self.top if has_value(fields[name])}

    def _parsed(self, body: Mapping[str, Any], raw: bytes) -> BaseModel:
        try:
            if self.plain:
                return self.model.model_validate(body, strict=True)
            return self.model.model_validate_json(raw, strict=True)
        except ValidationError as refused:
            found = errors_of(refused, self._again, body)
            raise invalid_body(wrong_fields(found, self.model, body)) from None

    def _again(self, part: Any) -> object:
        return self.model.model_validate_json(dump(part), strict=True)

    def _given(self, found: BaseModel, written: dict[str, Any]) -> dict[str, Any]:
        """What of `written` is data: a default of None is none, as in the saga's own model."""
        unset = {called for name, called in self.names.items() if name not in found.model_fields_set}
        return {name: value for name, value in written.items() if value is not None or name not in unset}

    def _checked(self, saga: Saga, data: dict[str, Any]) -> dict[str, Any]:
        """What the saga begins with; what its model refuses is reported with the field in which the client sends it."""
        try:
            return begun(saga, data)
        except InvalidDataError as refused:
            inner = [error for error in refused.errors if not self._outside(error, data)]
            outer = [error for error in refused.errors if self._outside(error, data)]
            above = (DATA,) if DATA in self.names.values() else ()
            texts = wrong_fields(outer, saga.data, data) + wrong_fields(inner, saga.data, data, *above)
            raise invalid_body(texts) from None

    def _outside(self, error: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
        """Whether the error is about a field beside the name; what is neither there nor here is missing in `data`."""
        first = error["loc"][0] if error["loc"] else None
        return first in self.top or (first in data and self.model.model_config.get("extra") == "allow")

    def _check(self) -> None:
        """Raises `DefinitionError` for what cannot work."""
        what, form = self.resource.request.__name__, form_of(self.model)
        if (wrong := lost(self.model)) is not None:
            raise self.resource.refused(wrong)
        wanted = {self.resource.key_name: "a text", CREATED_BY: "a text", DATA: "an object"}
        for name, kind in wanted.items():
            if name in self.names.values() and not form.part(name).kind.startswith(kind):
                raise self.resource.refused(f"{what}.{name} must be {kind}, not {form.part(name).kind}")
        self._check_names()
        if taken := self.top & {*FIXED, "saga"}:
            raise self.resource.refused(
                f"{what}.{min(taken)} would be data, but every instance has {min(taken)!r} of its own: rename it"
            )
        if DATA not in self.names.values() and self.model.model_config.get("extra") != "allow":
            self._check_required()

    def _check_names(self) -> None:
        what = self.resource.request.__name__
        if not _field(self, self.resource.key_name).is_required():
            raise self.resource.refused(
                f"{what}.{self.resource.key_name} must have no default: each name is given once"
            )
        for name, called in self.names.items():
            if called in (self.resource.key_name, CREATED_BY) and not writes_text(self.model, name):
                raise self.resource.refused(
                    f"{what}.{called} must be written as a text: its serializer makes it another"
                )

    def _check_required(self) -> None:
        model = self.resource.saga.data
        needed = {called_in_data(*one) for one in model.model_fields.items() if one[1].is_required()}
        if missing := sorted(str(name) for name in needed - self.top):
            raise self.resource.refused(
                f"{model.__name__}.{missing[0]} is required, and {self.resource.request.__name__} has no field for it"
            )


def has_value(field: FieldInfo) -> bool:
    """Whether the field has a value by default, or one must be given."""
    return field.is_required() or field.default_factory is not None or field.default is not None


def is_customized(model: type[BaseModel]) -> bool:
    """Whether the author's own code takes part in reading or writing it."""
    found = model.__pydantic_decorators__
    return bool(
        found.validators
        or found.field_validators
        or found.root_validators
        or found.model_validators
        or found.field_serializers
        or found.model_serializers
        or found.computed_fields
    )


def _field(of: RequestModel, called: str) -> FieldInfo:
    return next(of.model.model_fields[name] for name, one in of.names.items() if one == called)


def _called(resource: Resource, name: str, field: FieldInfo) -> str:
    """The one name that the field has in JSON. Raises `DefinitionError`."""
    called = called_in_data(name, field)
    if called is None or called != (field.serialization_alias or name):
        raise resource.refused(f"{resource.request.__name__}.{name} must have one name in JSON: give it a plain alias")
    return called


def _derived(resource: Resource, names: Mapping[str, str]) -> type[BaseModel]:
    """The request's model with our rules for names, and closed to fields that it does not know."""
    base = resource.request
    marks = {resource.key_name: _Named(), CREATED_BY: _Named(), DATA: _Data()}
    fields = {name: _marked(base.model_fields[name], marks[one]) for name, one in names.items() if one in marks}

    class Closed(base):  # type: ignore[misc, valid-type]
        """Takes the names in JSON alone."""

        model_config = ConfigDict(
            extra=base.model_config.get("extra", "forbid"), populate_by_name=False, validate_by_name=False
        )

    parts: dict[str, Any] = {"__module__": base.__module__, "__doc__": base.__doc__, **fields}
    return cast("type[BaseModel]", create_model(base.__name__, __base__=Closed, **parts))


def _marked(field: FieldInfo, mark: object) -> tuple[Any, FieldInfo]:
    marked = copy(field)
    marked.metadata = [*field.metadata, mark]
    return field.annotation, marked


def _normal(value: Any) -> Any:
    return normal(value) if isinstance(value, str) else value


def _name(value: Any, called: str, body: Mapping[str, Any]) -> Any:
    """The name, by our rules also where the model has made another one of what was sent. Raises `Problem` 422."""
    if value is None or value == body.get(called):
        return value
    try:
        return normal(value)
    except ValueError as refused:
        raise invalid_body([{"pointer": pointer((called,)), "detail": str(refused)}]) from None


def _joined(data: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    twice: Collection[str] = sorted(data.keys() & top.keys())
    if twice:
        raise invalid_body([{"pointer": pointer((DATA, name)), "detail": TWICE} for name in twice])
    return {**data, **top}
