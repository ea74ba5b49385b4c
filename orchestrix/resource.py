"""Resource: a path of the HTTP API at which the instances of one saga have names and fields of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from orchestrix.saga.definition import Saga
from orchestrix.saga.errors import DefinitionError

PATH: Final = re.compile(r"/[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class Resource:
    """The instances of `saga` at `path`, such as `/orders`.

    `POST path` takes a `request`: its field `key_name` is the instance's unique name, `createdBy` who wants it, and all
    other fields are the data that the saga begins with. Answers are `answer` models, made of the instance: `id`, its
    name as `key_name`, `createdBy`, `state`, `version` and so on, and the fields of its data.

    Raises `DefinitionError`.
    """

    saga: Saga
    path: str
    key_name: str
    request: type[BaseModel]
    answer: type[BaseModel]

    def __post_init__(self) -> None:
        if not PATH.fullmatch(self.path):
            raise DefinitionError(f"Resource({self.path!r}): path must be like /orders: lower case, one part")
        for what, model in (("request", self.request), ("answer", self.answer)):
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                raise DefinitionError(f"Resource({self.path!r}): {what} must be a pydantic model")
        if self.key_name not in self.request.model_fields:
            raise DefinitionError(f"Resource({self.path!r}): {self.request.__name__} has no field {self.key_name!r}")
