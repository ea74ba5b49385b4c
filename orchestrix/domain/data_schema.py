"""Data schema: a pydantic model that checks data by JSON Schema, where the author's model is not available."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticCustomError

from orchestrix.saga.definition import FreeData, Saga

MESSAGE_LIMIT_CHARS = 300
"""Characters of the message about a value that the schema refuses."""


def schema_of(saga: Saga) -> Mapping[str, Any] | None:
    """The JSON Schema of the saga's data; None where its model has none, as one with validators of its own kind."""
    try:
        return saga.data.model_json_schema(mode="validation")
    except Exception:  # pydantic's, or of the author's own schema hooks: such data are not checked by others
        return None


def model_of(schema: Mapping[str, Any] | None) -> type[BaseModel]:
    """A model that accepts what the schema accepts, as it is; every object without one.

    It sets no defaults: they were set when the instance began.
    """
    if schema is None:
        return FreeData
    from jsonschema import Draft202012Validator  # late: only a process that runs others' versions needs it
    from jsonschema.exceptions import best_match  # without types

    validator = Draft202012Validator(dict(schema))

    class StoredData(FreeData):
        """Data of a version whose code this process does not have."""

        by_schema: ClassVar[bool] = True

        @model_validator(mode="before")
        @classmethod
        def conforms(cls, data: Any) -> Any:
            """Refuses what the schema refuses, with the first place of it."""
            try:
                wrong = best_match(validator.iter_errors(data))  # type: ignore[no-untyped-call]
            except Exception:  # what it cannot check, as another dialect of patterns, it does not refuse
                return data
            if wrong is not None:
                place = ".".join(map(str, wrong.path)) or "data"
                raise PydanticCustomError(
                    "schema", "{said}", {"said": f"{place}: {wrong.message[:MESSAGE_LIMIT_CHARS]}"}
                )
            return data

    return StoredData
