"""OpenAPI: the document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from orchestrix.api import components
from orchestrix.api.resources import Served
from orchestrix.api.routes import BEARER

ABOUT: Final = (
    "Durable sagas over commands and events. A start answers as soon as it is committed; follow it by long-poll "
    "(`wait`) or by server-sent events. Every error is a problem of RFC 9457 with a `code`."
)
TAGS: Final = [
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


def install(app: FastAPI, all_served: Sequence[Served]) -> None:
    """Makes `app.openapi()` give the document, built once."""

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _build(app, all_served)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _build(app: FastAPI, all_served: Sequence[Served]) -> dict[str, Any]:
    tags = [*({"name": one.tag, "description": _about(one)} for one in all_served), *TAGS]
    document = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes, tags=tags)
    parts = document.setdefault("components", {})
    parts["securitySchemes"] = SECURITY
    parts.setdefault("schemas", {}).update(components.schemas(all_served))
    return document


def _about(one: Served) -> str:
    return one.resource.about or f"{one.noun.many.capitalize()}: instances of the saga `{one.resource.saga.name}`."
