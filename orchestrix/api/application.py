"""Application: builds the HTTP application."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from fastapi import FastAPI

from orchestrix.api import (
    catalogue,
    cluster,
    components,
    dead_letters,
    deadlines,
    docs,
    health,
    jobs,
    openapi,
    problems,
    redispatch,
    resources,
    routes,
    sagas,
    schedules,
    unconfigured_apps,
)
from orchestrix.api.auth import Door
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.middleware import ApiMiddleware
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog

UNTRACED: Final = ("/health", "/metrics", "/docs", "/openapi.json")


def build(context: ApiContext) -> FastAPI:
    """The ASGI application. Raises `DefinitionError` for resources that cannot be served."""
    served = resources.served(context.resources, context.catalog)
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
    calls = _calls(context.resources, served)
    components.check(served, calls)
    routes.add(app, context, door, calls)
    unconfigured_apps.add(app, context.resources)
    docs.add(app, door)
    openapi.install(app, served)
    problems.add_handlers(app, context.health)
    app.add_middleware(ApiMiddleware, guard=context.guard)
    return app


def check(wanted: Sequence[Resource], catalog: Catalog) -> None:
    """Raises the `DefinitionError` of `build`."""
    served = resources.served(wanted, catalog)
    components.check(served, _calls(wanted, served))


def _untraced(scope: MutableMapping[str, Any]) -> bool:
    return str(scope.get("path", "")).startswith(UNTRACED)


def _calls(wanted: Sequence[Resource], served: Sequence[resources.Served]) -> tuple[routes.Route, ...]:
    return (
        *resources.routes(served),
        *catalogue.ROUTES,
        *sagas.routes(wanted),
        *jobs.ROUTES,
        *schedules.ROUTES,
        *cluster.ROUTES,
        *deadlines.ROUTES,
        *dead_letters.ROUTES,
        *redispatch.ROUTES,
        *health.ROUTES,
    )
