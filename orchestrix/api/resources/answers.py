"""Answers: how the instances of a resource look in JSON, by the author's model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError, create_model

from orchestrix.api.answers import AnswerPage
from orchestrix.api.instances.models import SHOWN_FIELDS, PreviewBase, fields_of
from orchestrix.api.resources.names import Noun
from orchestrix.api.resources.requests import RequestModel, has_value, is_customized
from orchestrix.resource import FIXED, Resource
from orchestrix.saga.state import Instance
from orchestrix.saga.validation.round_trip import called_in_data
from orchestrix.telemetry.log_throttle import LogThrottle

log = logging.getLogger("orchestrix.api")

_KINDS: Final[Mapping[str, Any]] = {
    str(field.alias): field.annotation for name, field in SHOWN_FIELDS.items() if name not in ("saga", "key")
}
"""What every instance has beside its saga and its name, by the names in JSON."""
_TIMES: Final = tuple(name for name, kind in _KINDS.items() if kind in (datetime, datetime | None))


@dataclass(frozen=True, slots=True)
class AnswerModel:
    """The model of a resource's answers, made once. All names are those that the fields have in JSON."""

    resource: Resource
    reads: Mapping[str, str]
    """The names by which the model reads its fields."""
    times: tuple[str, ...]
    """Fields that are written as everywhere, with six digits."""
    plain: bool
    """Whether it is made of what every instance has alone, and as it is."""
    lines: LogThrottle

    @classmethod
    def of(cls, resource: Resource, request: RequestModel) -> AnswerModel:
        """Raises `DefinitionError` if there cannot be such an answer at the beginning."""
        model = resource.answer
        fields = {field.serialization_alias or name: (name, field) for name, field in model.model_fields.items()}
        kinds = {**_KINDS, resource.key_name: str}
        same = {called for called, (_, field) in fields.items() if field.annotation == kinds.get(called)}
        bare = all(called == name and not field.metadata for called, (name, field) in fields.items())
        customized = is_customized(model)
        reads = {called: _read_as(resource, *one) for called, one in fields.items()}
        found = cls(
            resource,
            reads,
            times=() if customized else tuple(name for name in _TIMES if name in same),
            plain=bare and same == fields.keys() and not customized,
            lines=LogThrottle(),
        )
        found._check({called for called, (_, field) in fields.items() if field.is_required()}, request)
        return found

    def view(self, instance: Instance) -> dict[str, Any]:
        """What is answered about `instance`: first what every instance has, then what is of its data."""
        every = fields_of(instance)
        every = {"id": every.pop("id"), self.resource.key_name: every.pop("key"), **every}
        del every["saga"]
        if self.plain and len(every) == len(self.reads):
            return every
        given = {called: every[called] for called in every if called in self.reads}
        if self.plain:
            return given
        data = instance.data
        return self._made(
            {**given, **{one: data[one] for one in self.reads if one not in every and one in data}}, instance
        )

    def _made(self, given: dict[str, Any], instance: Instance) -> dict[str, Any]:
        """The answer of what is `given`, which the model reads and writes. What it refuses is shown as it is: a client
        that learns nothing of what it has started would be worse off.
        """
        try:
            model = self.resource.answer.model_validate({self.reads[called]: one for called, one in given.items()})
            made = model.model_dump(mode="json", by_alias=True, warnings=False)
        except Exception as refused:  # an author's own code can fail in any way
            self._log(instance, refused)
            return given
        made |= {name: given[name] for name in self.times}
        return {**{called: made[called] for called in given if called in made}, **made}

    def _log(self, instance: Instance, refused: Exception) -> None:
        if (left_out := self.lines.due(self.resource.path)) is not None:
            what = (instance.saga, instance.id, self.resource.answer.__name__, _why(refused))
            log.warning("%s %d is shown as it is, for it does not fit %s: %s", *what, extra={"left_out": left_out})

    def _check(self, required: set[str], request: RequestModel) -> None:
        model = self.resource.saga.data
        own = {called_in_data(*one) for one in model.model_fields.items() if has_value(one[1])}
        if lacking := sorted(required - {*FIXED, self.resource.key_name} - own - request.begins_with()):
            raise self.resource.refused(
                f"{self.resource.answer.__name__}.{lacking[0]} is required, but at the beginning there need be no "
                f"{lacking[0]!r} in the data: give it a default, such as None"
            )


def _why(refused: Exception) -> str:
    """Without what is in the data."""
    if not isinstance(refused, ValidationError):
        return f"its own code fails with {type(refused).__name__}"
    first = refused.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def page_of(answer: type[BaseModel], noun: Noun) -> type[BaseModel]:
    """A page of answers."""
    about = f"Some {noun.many}, and where the next ones begin."
    base: Any = AnswerPage[answer]  # type: ignore[valid-type]
    return create_model(f"{noun.name}Page", __base__=base, __doc__=about)


def preview_of(answer: type[BaseModel], noun: Noun) -> type[BaseModel]:
    """What an action would do, with what it would be about."""
    about = f"What an action would do to {noun.a_one}; nothing has been changed."
    member = member_of(noun)
    fields: dict[str, Any] = {member: (answer, Field(description="As it would be.", alias=member))}
    return create_model(f"{noun.name}Preview", __base__=PreviewBase, __doc__=about, **fields)


def member_of(noun: Noun) -> str:
    """What the instance is called in a preview."""
    taken = {field.alias for field in PreviewBase.model_fields.values()}
    return "instance" if noun.member in taken else noun.member


def _read_as(resource: Resource, name: str, field: Any) -> str:
    called = called_in_data(name, field)
    if called is None:
        raise resource.refused(f"{resource.answer.__name__}.{name} must be read by one name: give it a plain alias")
    return called
