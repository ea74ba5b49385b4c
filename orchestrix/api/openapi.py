"""What does the OpenAPI document say?"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrix.api import catalogue, cluster_schemas, job_schemas, schedule_bodies, schedule_schemas
from orchestrix.api.bodies import NewApp, NewSaga
from orchestrix.api.demands import DEMANDS
from orchestrix.api.routes import BEARER
from orchestrix.api.schemas import MODELS

REF: Final = "#/components/schemas/{model}"
ABOUT: Final = (
    "Durable sagas over commands and events. A start answers as soon as it is committed; follow it by long-poll "
    "(`wait`) or by server-sent events. Every error is a problem of RFC 9457 with a `code`."
)
TAGS: Final = [
    {"name": "apps", "description": "Apps: their git repository is created, then they are registered."},
    {"name": "sagas", "description": "Sagas of any name, your own among them."},
    {"name": "jobs", "description": "Long work for the workers of a queue."},
    {"name": "schedules", "description": "Jobs that begin by themselves."},
    {"name": "cluster", "description": "The nodes, and who of them leads."},
    {"name": "control", "description": "For people at the wheel: what is due, and what is to be sent again."},
    {"name": "health", "description": "For load balancers and for people."},
]
SECURITY: Final = {
    BEARER: {
        "type": "http",
        "scheme": "bearer",
        "description": "A secret of `ORCHESTRIX_API__TOKENS`; whose it is stands in the history as the actor. Where no "
        "tokens are set, none is needed.",
    }
}

BODIES: Final[tuple[type[BaseModel], ...]] = (NewApp, NewSaga, *DEMANDS, *job_schemas.ASKED, *schedule_schemas.ASKED)
"""All that can be sent."""


def install(app: FastAPI) -> None:
    """Makes `app.openapi()` give the document, built once."""

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes, tags=TAGS)
    shown: tuple[type[BaseModel], ...] = (
        *MODELS,
        catalogue.CatalogueBody,
        *job_schemas.SHOWN,
        *schedule_bodies.SHOWN,
        *cluster_schemas.SHOWN,
    )
    _, schemas = models_json_schema([(model, "serialization") for model in shown], ref_template=REF)
    _, asked = models_json_schema([(model, "validation") for model in BODIES], ref_template=REF)
    components = document.setdefault("components", {})
    components["securitySchemes"] = SECURITY
    components.setdefault("schemas", {}).update({**schemas["$defs"], **asked["$defs"]})
    return document
