"""Components: the schemas of the OpenAPI document, and whether those of resources fit in with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import to_jsonable_python

from orchestrix.api import catalogue, cluster_schemas, job_schemas, resources, sagas, schedule_bodies, schedule_schemas
from orchestrix.api.action_requests import DEMANDS
from orchestrix.api.examples import APP
from orchestrix.api.request_body import NewSaga
from orchestrix.api.resources import Served
from orchestrix.api.routes import Route
from orchestrix.api.schemas import MODELS, InstanceBase
from orchestrix.resource import CREATED_BY, FIXED, Resource

REF: Final = "#/components/schemas/{model}"
BODIES: Final[tuple[type[BaseModel], ...]] = (NewSaga, *DEMANDS, *job_schemas.ASKED, *schedule_schemas.ASKED)
"""All that can be sent."""
SHOWN: Final[tuple[type[BaseModel], ...]] = (
    *MODELS,
    catalogue.CatalogueBody,
    *job_schemas.SHOWN,
    *schedule_bodies.SHOWN,
    *cluster_schemas.SHOWN,
)
Schemas = dict[str, Any]


def schemas(all_served: Sequence[Served]) -> Schemas:
    """All of them, by name."""
    found = {**own(), **_defined([(model, "serialization") for model in sagas.models(_resources(all_served))])}
    for one in all_served:
        found |= of_resource(one)
    return found


@cache
def own() -> Schemas:
    """Those that are there without any resource."""
    shown = _defined([(model, "serialization") for model in (*SHOWN, *sagas.models(()))])
    return {**shown, **_defined([(model, "validation") for model in BODIES])}


def of_resource(one: Served) -> Schemas:
    """Those of one resource. What the author says nothing about is described as everywhere."""
    answer = one.resource.answer
    shown = [(model, "serialization") for model in (answer, one.page, one.preview)]
    found = _defined([(one.request.model, "validation"), *shown])
    body = found[answer.__name__]
    for name, schema in InstanceBase.model_json_schema()["properties"].items():
        if name in body.get("properties", {}) and "description" in schema:
            body["properties"][name].setdefault("description", schema["description"])
    if one.answer.plain and "examples" not in body:
        body["examples"] = [_example(one, found[one.request.model.__name__])]
    return found


def check(all_served: Sequence[Served], routes: Iterable[Route]) -> None:
    """Raises `DefinitionError` for a resource whose operations or models are called as others are."""
    calls = Counter(route.name for route in routes)
    known = dict(own()) if all_served else {}
    for one in all_served:
        theirs = {route.name for route in resources.routes([one])}
        if taken := sorted(name for name in theirs if calls[name] > 1):
            raise one.resource.refused(f"its operation {taken[0]} would be there twice: choose another path")
        found = of_resource(one)
        if clashing := [name for name, schema in found.items() if known.get(name, schema) != schema]:
            raise one.resource.refused(f"there is another model {min(clashing)} in the document: rename yours")
        known |= found


def _resources(all_served: Iterable[Served]) -> list[Resource]:
    return [one.resource for one in all_served]


def _defined(models: Sequence[tuple[type[BaseModel], Any]]) -> Schemas:
    _, found = models_json_schema(models, ref_template=REF)
    defined: Schemas = to_jsonable_python(found["$defs"], fallback=str)  # examples are as their authors wrote them
    return defined


def _example(one: Served, request: Schemas) -> dict[str, Any]:
    """An instance at its beginning, as the example of the request asks for it."""
    examples = request.get("examples")
    first = examples[0] if isinstance(examples, list) and examples else {}
    asked = first if isinstance(first, dict) else {}
    resource = one.resource
    named = {"id": APP["id"], resource.key_name: asked.get(resource.key_name, "billing")}
    every = {**named, **{name: APP[name] for name in FIXED}}
    every |= {CREATED_BY: asked.get(CREATED_BY, APP[CREATED_BY]), "state": resource.saga.initial}
    return {name: value for name, value in every.items() if name in one.answer.reads}
