"""Resource: a path of the HTTP API at which the instances of one saga have names and fields of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from orchestrix.saga.definition import Saga
from orchestrix.saga.errors import DefinitionError
from orchestrix.saga.validation.round_trip import called_in_data

PATH: Final = re.compile(r"/[a-z][a-z0-9_-]{0,39}")
OWN_PATHS: Final = frozenset(
    {
        "api",
        "attention",
        "audit",
        "bulk",
        "cluster",
        "counts",
        "dead-letters",
        "deadlines",
        "docs",
        "health",
        "jobs",
        "metrics",
        "queues",
        "redispatch",
        "registry",
        "sagas",
        "schedules",
        "shards",
        "stuck",
        "traces",
        "ui",
        "workers",
    }
)
"""First parts of paths that the API has itself, or is to have."""
APP: Final = "app"
"""The saga whose instances have tables, calls of the shell and a path of their own: `/apps`, and no other has that."""
APPS: Final = "/apps"
APP_NAME: Final = "appName"
"""What their name is called, which the shell sends."""
CREATED_BY: Final = "createdBy"
DATA: Final = "data"
FIXED: Final = (
    "id",
    CREATED_BY,
    "state",
    "version",
    "correlationId",
    "traceId",
    "createdAt",
    "updatedAt",
    "attempt",
    "wakeAt",
    "wakeReason",
    "blocker",
    "deadlineAt",
    DATA,
)
"""What every instance has beside its name, as answers call it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """The instances of `saga` at `path`, such as `/orders`.

    `POST path` takes a `request`, in which a field of another name is refused unless the model says something else of
    `extra`. Its field `key_name` is the instance's unique name; `createdBy` is who wants it, where there is no such
    field the holder of the token; `data`, an object, is the data that the saga begins with, and so is, under its name,
    every other field. Names are brought to Unicode NFC and have 1 to 200 code points, whatever the model says.

    Answers are `answer` models, made of the instance's `id`, its name as `key_name`, `createdBy`, `state`, `version`,
    `correlationId`, `traceId`, `createdAt`, `updatedAt`, `attempt`, `wakeAt`, `wakeReason`, `blocker`, `deadlineAt` and
    `data`, and of the fields of its data that the model declares. What data lack must have a default there. `about` is
    a sentence for the OpenAPI document.

    Raises `DefinitionError`.
    """

    saga: Saga
    path: str
    key_name: str
    request: type[BaseModel]
    answer: type[BaseModel]
    about: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.saga, Saga):
            raise self.refused("saga must be a Saga")
        if not (isinstance(self.path, str) and PATH.fullmatch(self.path)):
            raise self.refused("path must be like /orders: lower case, one part")
        if self.path[1:] in OWN_PATHS:
            raise self.refused("this path is reserved by the API: choose another path")
        self._check_apps()
        for what, model in (("request", self.request), ("answer", self.answer)):
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                raise self.refused(f"{what} must be a pydantic model")
        if self.request.__name__ == self.answer.__name__:
            raise self.refused(f"request and answer have the same name, {self.answer.__name__}: rename one")
        if self.key_name in (*FIXED, "saga"):
            raise self.refused(f"key_name cannot be {self.key_name!r}, which every instance has: choose another")
        sent = (called_in_data(*field) for field in self.request.model_fields.items())
        if self.key_name not in sent:
            raise self.refused(f"{self.request.__name__} has no field {self.key_name!r} for the instance's name")

    def _check_apps(self) -> None:
        if self.path == APPS and self.saga.name != APP:
            raise self.refused(f"this path belongs to the saga {APP!r}, not to {self.saga.name!r}: choose another path")
        if self.saga.name == APP and self.path != APPS:
            raise self.refused(f"the saga {APP!r} is served at {APPS} only: use that path, or rename the saga")
        if self.path == APPS and self.key_name != APP_NAME:
            raise self.refused(f"key_name must be {APP_NAME!r} at {APPS}: `orchestrix apps` sends it")

    def refused(self, why: str) -> DefinitionError:
        """The error that says `why` this cannot be."""
        return DefinitionError(f"Resource({self.path!r}): {why}")
