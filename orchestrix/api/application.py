"""How is the HTTP application put together?"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from fastapi import FastAPI

from orchestrix.api import (
    apps,
    catalogue,
    cluster,
    dead_letters,
    deadlines,
    docs,
    health,
    jobs,
    openapi,
    problems,
    redispatch,
    routes,
    sagas,
    schedules,
)
from orchestrix.api.access import Door
from orchestrix.api.context import ApiContext
from orchestrix.api.middleware import Edge

UNTRACED: Final = ("/health", "/metrics", "/docs", "/openapi.json")


def build(context: ApiContext) -> FastAPI:
    """The ASGI application."""
    app = FastAPI(
        title="Orchestrix",
        version=context.version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"auto_configure": False, "operation_spans": False, "exclude": _untraced},
    )
    door = Door(context.tokens)
    routes.add(
        app,
        context,
        door,
        (
            *apps.ROUTES,
            *catalogue.ROUTES,
            *sagas.ROUTES,
            *jobs.ROUTES,
            *schedules.ROUTES,
            *cluster.ROUTES,
            *deadlines.ROUTES,
            *dead_letters.ROUTES,
            *redispatch.ROUTES,
            *health.ROUTES,
        ),
    )
    docs.add(app, door)
    openapi.install(app)
    problems.add_handlers(app, context.health)
    app.add_middleware(Edge, guard=context.guard)
    return app


def _untraced(scope: MutableMapping[str, Any]) -> bool:
    return str(scope.get("path", "")).startswith(UNTRACED)
