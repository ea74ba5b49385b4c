"""Routes: how a handler gets its request, and how it shows in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from orchestrix.api import problems
from orchestrix.api.auth import ANONYMOUS, Door, client
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.origin_guard import SAFE
from orchestrix.api.parameters import Parameter, Query
from orchestrix.api.schemas import ProblemBody
from orchestrix.saga.messages import storable


@dataclass(frozen=True, slots=True)
class Call:
    """One request of somebody who may ask, with its parameters checked."""

    context: ApiContext
    door: Door
    request: Request
    query: Query
    actor: str

    @property
    def client(self) -> str:
        """Whom what he has open is counted for: the name of the token, else the address."""
        return self.actor if self.actor != ANONYMOUS else client(self.request)

    def path(self, name: str) -> str:
        """A part of the path. Raises `Problem` 404 for one that no database could hold, so nothing is called that."""
        text = str(self.request.path_params.get(name, ""))
        if len(text) > MAX_PART or not storable(text):
            raise problems.Problem("not_found", f"There is no {name} {text[:60]!r}: nothing has such a name.")
        return text


MAX_PART: Final = 1000
"""Code points that a part of a path may have: more than any name."""

Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation: what it does, and what its users must know of it. `problems` are codes from the table.

    Parameters that are not named are refused; None lets all pass, for probes that add some against caches. Nobody needs
    a token for what is `public`.
    """

    method: str
    path: str
    name: str
    handler: Handler
    summary: str
    about: str = ""
    tag: str = ""
    parameters: Sequence[Parameter] | None = ()
    headers: Sequence[Mapping[str, Any]] = ()
    body: type[Any] | None = None
    answers: Mapping[int | str, Mapping[str, Any]] = field(default_factory=dict)
    problems: Sequence[str] = ()
    public: bool = False


ALWAYS: Final = ("bad_header", "misdirected", "internal_error")
NOT_SAFE: Final = ("foreign_origin",)
"""Where something is changed, and for streams."""
PRIVATE: Final = ("unauthorized", "too_many_requests")
"""Where a token is needed."""


def add(app: FastAPI, context: ApiContext, door: Door, routes: Sequence[Route]) -> None:
    """Serves `routes` to whom `door` lets in. Query parameters that a route does not name are refused with 400."""
    for route in routes:
        app.add_api_route(
            route.path,
            _endpoint(context, door, route),
            methods=[route.method],
            operation_id=route.name,
            name=route.name,
            summary=route.summary,
            description=route.about or None,
            tags=[route.tag],
            response_model=None,
            response_class=Response,
            status_code=min((int(status) for status in route.answers), default=200),
            responses={**_answers(route), **_problems(route)},
            openapi_extra=_extra(route),
        )


def _endpoint(context: ApiContext, door: Door, route: Route) -> Callable[[Request], Awaitable[Response]]:
    handler, known = route.handler, route.parameters

    async def endpoint(request: Request) -> Response:
        who = ANONYMOUS if route.public else door.admit(request)
        raw = b"" if known is None else request.scope["query_string"]
        return await handler(Call(context, door, request, Query(raw, known or ()), who))

    return endpoint


def _answers(route: Route) -> dict[int | str, dict[str, Any]]:
    return {status: dict(answer) for status, answer in route.answers.items()}


def _problems(route: Route) -> dict[int | str, dict[str, Any]]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys((*route.problems, *_by_nature(route), *ALWAYS)):
        by_status.setdefault(problems.CODES[code].status, []).append(code)
    return {status: _problem(status, codes) for status, codes in sorted(by_status.items())}


def _by_nature(route: Route) -> tuple[str, ...]:
    changing = route.method not in SAFE or problems.is_stream(route.path)
    return (*(() if route.public else PRIVATE), *(NOT_SAFE if changing else ()))


def _problem(status: int, codes: Sequence[str]) -> dict[str, Any]:
    titles = "; ".join(f"{problems.CODES[code].title} (`{code}`)" for code in codes)
    examples = {code: {"value": _example(code, status)} for code in codes}
    schema = {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}
    answer: dict[str, Any] = {
        "description": titles,
        "content": {problems.MEDIA_TYPE: {"schema": schema, "examples": examples}},
    }
    if status in (429, 503) or "idempotency_in_flight" in codes:
        answer["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    if status == 401:
        answer["headers"] = {"WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}}}
    return answer


def _example(code: str, status: int) -> dict[str, Any]:
    return {
        "type": problems.TYPE_PREFIX + code,
        "title": problems.CODES[code].title,
        "status": status,
        "detail": "…",
        "code": code,
    }


def _extra(route: Route) -> dict[str, Any]:
    in_path = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    parameters: list[Mapping[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": PATH_SCHEMAS[name]} for name in in_path
    ]
    parameters += [_query(parameter) for parameter in route.parameters or ()] + list(route.headers)
    extra: dict[str, Any] = {"parameters": parameters} if parameters else {}
    extra["security"] = [] if route.public else [{BEARER: []}]
    if route.body is not None:
        schema = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        needed = any(field.is_required() for field in route.body.model_fields.values())
        extra["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
    return extra


BEARER: Final = "bearer"
"""What the document calls the way in which a request says who asks."""
PATH_SCHEMAS: Final[Mapping[str, Any]] = {
    "id": {"type": "integer", "format": "int64", "minimum": 1},
    "job": {"type": "string", "format": "uuid"},
    "letter": {"type": "string", "format": "uuid"},
    "node": {"type": "string", "maxLength": 100},
    "name": {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,39}$"},
    "schedule": {"type": "string", "description": "Its id or its name."},
}


def _query(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "array", "items": parameter.schema} if parameter.many else parameter.schema
    return {"name": parameter.name, "in": "query", "description": parameter.about, "schema": schema}
