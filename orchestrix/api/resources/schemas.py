"""Resource schemas: those of declared resources, and whether they fit in with all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from orchestrix.api.instances.models import SagaBody
from orchestrix.api.openapi import document as openapi
from orchestrix.api.openapi.document import Schema
from orchestrix.api.operations import Operation
from orchestrix.api.resources.routes import Served, operations_of
from orchestrix.api.traces.links import LINKS
from orchestrix.resource import CREATED_BY, FIXED


def of_resource(one: Served) -> Schema:
    """The schemas of one resource. What the author says nothing about is described as everywhere."""
    answer = one.resource.answer
    found = openapi.models_of(operations_of(one))
    body = found[answer.__name__]
    for name, schema in _described().items():
        if name in body.get("properties", {}) and "description" in schema:
            body["properties"][name].setdefault("description", schema["description"])
    body.setdefault("properties", {}).setdefault(LINKS, _described()[LINKS])
    if one.answer.plain and "examples" not in body:
        body["examples"] = [_example(one, found[one.request.model.__name__])]
    return {name: openapi.with_example(schema, found) for name, schema in found.items()}


@cache
def _described() -> Schema:
    properties: Schema = openapi.schemas([SagaBody], "serialization")["SagaBody"]["properties"]
    return properties


def check(all_served: Sequence[Served], operations: Sequence[Operation], own: Schema) -> Schema:
    """The schemas of all resources beside our `own`. Raises `DefinitionError` for a resource whose operations or models
    are called as others are.
    """
    calls = Counter(one.name for one in operations)
    known = dict(own)
    for one in all_served:
        theirs = {operation.name for operation in operations_of(one)}
        if taken := sorted(name for name in theirs if calls[name] > 1):
            raise one.resource.refused(f"its operation {taken[0]} would be there twice: choose another path")
        found = of_resource(one)
        if clashing := [name for name, schema in found.items() if known.get(name, schema) != schema]:
            raise one.resource.refused(f"there is another model {min(clashing)} in the document: rename yours")
        known |= found
    return known


def _example(one: Served, request: Schema) -> dict[str, Any]:
    """An instance at its beginning, as the example of the request asks for it."""
    examples = request.get("examples")
    first = examples[0] if isinstance(examples, list) and examples else {}
    asked = first if isinstance(first, dict) else {}
    resource = one.resource
    shown: dict[str, Any] = SagaBody.example() or {}
    every = {"id": shown["id"], resource.key_name: asked.get(resource.key_name, "billing")}
    every |= {name: shown[name] for name in FIXED} | {"state": resource.saga.initial}
    every[CREATED_BY] = asked.get(CREATED_BY, shown[CREATED_BY])
    return {name: value for name, value in every.items() if name in one.answer.reads}
