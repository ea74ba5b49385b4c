"""With which data does a saga begin?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from .definition import BadData, Saga
from .messages import Unreadable, dump, load


def begun(saga: Saga, data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` and, of what it leaves out, the defaults of the saga's model; raises `BadData` for what that refuses.

    They are found once: every step, and every try of it, sees the same. What is given stays as it is written, and a
    default of None stays away. Defaults that the model itself would refuse as data, or that are no JSON, are left out.
    """
    given = saga.check(data)
    model = saga.data.model_validate(given)
    try:
        return saga.check({**load(dump(_defaults(model))), **given})
    except (BadData, PydanticSerializationError, Unreadable, ValueError):
        return given


def _defaults(model: BaseModel) -> dict[str, Any]:
    fields = type(model).model_fields
    absent = fields.keys() - model.model_fields_set
    found = model.model_dump(mode="json", include=absent, exclude_none=True, warnings=False)
    return {_called(name, fields[name].validation_alias): found[name] for name in fields if name in found}


def _called(name: str, alias: object) -> str:
    """What the field is called in data."""
    return alias if isinstance(alias, str) else name
