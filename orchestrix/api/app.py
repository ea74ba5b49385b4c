"""App: builds the HTTP application of the declared operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrix.api import operations, problems
from orchestrix.api.actions.routes import redispatches
from orchestrix.api.asyncapi import document as asyncapi
from orchestrix.api.audit.routes import operations as audit
from orchestrix.api.cluster.routes import operations as cluster
from orchestrix.api.dead_letters.routes import operations as dead_letters
from orchestrix.api.deadlines.routes import operations as deadlines
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.guards.auth import Authenticator
from orchestrix.api.health.routes import operations as health
from orchestrix.api.jobs.reports import operations as reports
from orchestrix.api.jobs.routes import operations as jobs
from orchestrix.api.middleware import GZIP_FROM, ApiMiddleware, CrossOrigin
from orchestrix.api.openapi import document as openapi
from orchestrix.api.openapi import page
from orchestrix.api.operations import Operation
from orchestrix.api.registry.routes import operations as registry
from orchestrix.api.resources import routes as resources
from orchestrix.api.resources import schemas, unconfigured
from orchestrix.api.sagas import routes as sagas
from orchestrix.api.schedules.routes import operations as schedules
from orchestrix.api.shards.routes import operations as shards
from orchestrix.api.stuck.routes import operations as stuck
from orchestrix.api.traces.routes import operations as traces
from orchestrix.api.traces.server_span import is_traced
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import RESERVED

OF_EXECUTORS: Final = re.compile(r"/api/registry(?:Remove)?|/jobs/[^/]+/attempts/[^/]+/(?:status|logs)")
"""The paths of heartbeats, and of reports of attempts."""
OWN: Final = (
    sagas.catalogue,
    jobs,
    reports,
    schedules,
    registry,
    shards,
    cluster,
    deadlines,
    stuck,
    dead_letters,
    redispatches,
    audit,
    traces,
    health,
)
"""The nouns that are there whatever sagas and resources there are."""


class _Api(FastAPI):
    """Answers executors without FastAPI's own layers: theirs are most requests, and use none of these.

    `of_executors` answers them with the same middleware, routes and handlers of errors. Middleware that a user has
    added sees all requests.
    """

    of_executors: ASGIApp | None = None
    own_middleware = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            self.of_executors is not None
            and scope["type"] == "http"
            and OF_EXECUTORS.fullmatch(scope["path"])
            and len(self.user_middleware) == self.own_middleware
        ):
            scope["app"] = self
            await self.of_executors(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def build(context: ApiContext) -> FastAPI:
    """The ASGI application. Raises `DefinitionError` for resources that cannot be served."""
    served = resources.served(context.resources, context.catalog)
    app = _Api(
        title="Orchestrix",
        version=context.version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"auto_configure": False, "tracing": False, "exclude": lambda scope: not is_traced(scope)},
    )
    authenticator = Authenticator(context.tokens)
    calls = _operations(context.resources, served, context.catalog)
    models = schemas.check(served, calls, own_schemas())
    operations.add(app, context, authenticator, calls)
    unconfigured.add(app, context.resources)
    page.add(app, authenticator, lambda: asyncapi.document(context.version, context.catalog))
    problems.add_handlers(app, context.health)
    if context.gzip:
        app.add_middleware(GZipMiddleware, minimum_size=GZIP_FROM, compresslevel=5)  # it leaves streams alone
    app.add_middleware(ApiMiddleware, guard=context.guard)
    if context.guard.origins:
        app.add_middleware(CrossOrigin, origins=context.guard.origins)

    if not context.guard.origins:
        routes = [route for route in app.router.routes if OF_EXECUTORS.fullmatch(getattr(route, "path", ""))]
        handling = ExceptionMiddleware(Router(routes, redirect_slashes=False), handlers=app.exception_handlers)
        app.of_executors = ApiMiddleware(handling, guard=context.guard)
    app.own_middleware = len(app.user_middleware)

    @cache
    def document() -> openapi.Schema:
        every = {**models, **openapi.models_of(sagas.operations_of(context.resources))}
        return openapi.document(app.title, app.version, {one.tag: one.about for one in served}, calls, every)

    app.openapi = document  # type: ignore[method-assign]
    return app


def check(wanted: Sequence[Resource], catalog: Catalog) -> None:
    """Raises the `DefinitionError` of `build`."""
    served = resources.served(wanted, catalog)
    schemas.check(served, _operations(wanted, served, catalog), own_schemas())


def own_operations() -> list[Operation]:
    """Those that are there whatever resources there are, but for those of instances."""
    return [one for noun in OWN for one in noun.all]


@cache
def own_schemas() -> openapi.Schema:
    """The schemas that are there without any resource."""
    return openapi.models_of([*own_operations(), *sagas.operations_of(())], openapi.ProblemBody)


def _operations(wanted: Sequence[Resource], served: Sequence[resources.Served], catalog: Catalog) -> list[Operation]:
    declared = [
        one
        for each in served
        for one in resources.operations_of(each, RESERVED | catalog.states(each.resource.saga.name))
    ]
    return [*declared, *sagas.operations_of(wanted), *own_operations()]
