"""Operations: how the API's calls are declared, served and described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import getdoc
from typing import Any, Final, TypeVar, get_args, get_type_hints

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from orchestrix.api import problems
from orchestrix.api.answers import Answer, AnswerPage, respond
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.guards.auth import ANONYMOUS, Authenticator, client
from orchestrix.api.headers import IF_NONE_MATCH, not_modified
from orchestrix.api.idempotency import key_of
from orchestrix.api.pagination import next_link
from orchestrix.api.query import Query, read_query
from orchestrix.api.request_body import parsed, read_object, read_perhaps
from orchestrix.domain.idempotency import Keyed
from orchestrix.errors import OrchestrixError
from orchestrix.saga.messages import storable

R = TypeVar("R")
H = TypeVar("H", bound="Handler")

EITHER: Final = "oneOf"
"""In the schema of a body that needs one of several fields."""
MAX_PART: Final = 1000
"""Code points that a part of a path may have: more than any name."""


@dataclass(slots=True)
class Call:
    """One authenticated request. `status` is that of its success, `sent` its body, if it
    has one.
    """

    context: ApiContext
    authenticator: Authenticator
    request: Request
    actor: str
    status: int = 200
    sent: dict[str, Any] = field(default_factory=dict)

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

    def key(self, render: Callable[[R], Answer | Response], sent: Mapping[str, Any] | None = None) -> Keyed[R] | None:
        """The client's `Idempotency-Key`, if there is one. `render` makes the answer that is stored for it."""

        def response(done: R) -> Response:
            answer = render(done)
            return answer if isinstance(answer, Response) else respond(answer, self.status)

        return key_of(self.request, self.actor, self.sent if sent is None else sent, response)


Handler = Callable[..., Awaitable[Answer | Response]]
_Answering = Callable[[Request], Awaitable[Response]]
Refusal = Callable[[Exception, Any], problems.Problem | None]
"""The problem that an error of the handler is, by what the path named; None for one that is reported as everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: what it does, and what its users must know of it.

    The handler gets the call; then what `of` finds in the path, which may be a problem 404; then the query; then the
    body: those of them that it has. An answer that it returns has the `status`; a response goes as it is. `headers` are
    those of requests, `problems` the codes beside those that follow from the rest. Without a `query` model all
    parameters pass, for probes that add some against caches. What is `public` needs no token.
    """

    method: str
    path: str
    name: str
    handler: Handler
    summary: str
    about: str
    tag: str
    of: Callable[[Call], Any] | None = None
    refusal: Refusal | None = None
    query: type[Query] | None = Query
    body: type[BaseModel] | None = None
    writes_body: bool = True
    """False for a body that the handler reads itself."""
    answer: type[BaseModel] | None = None
    or_answer: type[BaseModel] | None = None
    """What it is instead, for a dry run."""
    status: int = 200
    done: str = ""
    """What the answer means; by default what its model says."""
    others: Mapping[int, str] = field(default_factory=dict)
    """Answers without a body."""
    media: Sequence[str] = ()
    """The media types of an answer that is text."""
    events: Mapping[str, type[Answer]] = field(default_factory=dict)
    """The data of server-sent events, by their names, if it can be a stream."""
    headers: Sequence[str] = ()
    problems: Sequence[str] = ()
    public: bool = False
    executors: bool = False
    """Whether the tokens of executors open it too."""
    own_token: bool = False
    """Whether it has a token of its own, which the handler checks, and no other opens it."""


class Operations:
    """The operations of one noun, in the order of their declaration.

    A handler declares its query, its body and its answer by its signature; its name is that of the operation, and its
    docstring the description, in which `a_one` stands for `{}`. What cannot be seen there is given beside the path.
    """

    def __init__(self, tag: str, *, a_one: str = "", refusal: Refusal | None = None) -> None:
        self._tag, self._a_one, self._refusal = tag, a_one, refusal
        self.all: list[Operation] = []
        self.get, self.post = partial(self.on, "GET"), partial(self.on, "POST")
        self.patch, self.delete = partial(self.on, "PATCH"), partial(self.on, "DELETE")
        self.put = partial(self.on, "PUT")

    def worded(self, summary: str) -> str:
        """The summary, about one of the noun."""
        return summary.format(self._a_one)

    def on(self, method: str, path: str, **more: Any) -> Callable[[H], H]:
        """Declares the operation that a handler does."""

        def declare(handler: H) -> H:
            summary, _, about = (getdoc(handler) or "").partition("\n\n")
            texts = {
                "name": to_camel(handler.__name__),
                "summary": self.worded(summary).removesuffix("."),
                "about": " ".join(about.split()),
                "tag": self._tag,
                "refusal": self._refusal,
            }
            given = {"method": method, "path": path, **texts, **_models(handler), **more}
            self.all.append(Operation(handler=handler, **given))
            return handler

        return declare


def _models(handler: Handler) -> dict[str, Any]:
    """The models in the signature, by what they are for."""
    hints = get_type_hints(handler)
    returned = hints.pop("return")
    found: dict[str, Any] = {}
    for one in (returned, *get_args(returned)):
        if _is(one, Answer):
            found["answer"] = one
    for hint in hints.values():
        if _is(hint, BaseModel):
            found["query" if issubclass(hint, Query) else "body"] = hint
    return found


def _is(hint: Any, model: type[BaseModel]) -> bool:
    return isinstance(hint, type) and issubclass(hint, model)


def add(app: FastAPI, context: ApiContext, authenticator: Authenticator, operations: Sequence[Operation]) -> None:
    """Serves the operations to the clients that `authenticator` admits, and to executors what is for them.

    What executors call is found first: most requests are their heartbeats, and the router tries one route after the
    other.
    """
    executors = authenticator.with_more(context.registry.tokens)
    for one in sorted(operations, key=lambda one: not one.executors):
        endpoint = _Endpoint(_endpoint(context, executors if one.executors else authenticator, one))
        route = _Route(one.path, endpoint, name=one.name, include_in_schema=False)
        route.methods = {one.method}  # given to the route, GET would bring HEAD with it, also to streams
        app.router.routes.append(route)


class _Route(Route):
    """A route that says in the scope that it is the request's, for the name of its span."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        await super().handle(scope, receive, send)


class _Endpoint:
    """The function as an ASGI application, without FastAPI's dependencies and responses, of which it needs none."""

    def __init__(self, answer: _Answering) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)


def _endpoint(context: ApiContext, authenticator: Authenticator, one: Operation) -> _Answering:
    handler, of, query, body = one.handler, one.of, one.query, one.body if one.writes_body else None
    asks = query is not None and bool(query.model_fields)
    read = read_object if body is not None and needs_body(body) else read_perhaps

    async def endpoint(request: Request) -> Response:
        call = Call(
            context,
            authenticator,
            request,
            ANONYMOUS if one.public or one.own_token else authenticator.admit(request),
            one.status,
        )
        given: list[Any] = [call]
        raw = request.scope["query_string"]
        asked = read_query(query, raw) if query is not None and (asks or raw) else None
        if of is not None:
            given.append(of(call))
        if asks:
            given.append(asked)
        if body is not None:
            call.sent = await read(request)
            given.append(parsed(body, call.sent))
        try:
            answer = await handler(*given)
        except OrchestrixError as error:
            problem = one.refusal(error, given[1] if of is not None else None) if one.refusal is not None else None
            if problem is None:
                raise
            raise problem from None
        return answer if isinstance(answer, Response) else _sent(one, request, answer)

    return endpoint


def _sent(one: Operation, request: Request, answer: Answer) -> Response:
    if isinstance(answer, AnswerPage):
        return respond(answer, one.status, next_link(request, answer.next_cursor))
    if IF_NONE_MATCH in one.headers and (same := not_modified(request, getattr(answer, "version", 0))):
        return same
    return respond(answer, one.status)


def needs_body(model: type[BaseModel]) -> bool:
    """Whether the body cannot be left out."""
    extra = model.model_config.get("json_schema_extra")
    fits = EITHER in extra if isinstance(extra, dict) else False
    return fits or any(field.is_required() for field in model.model_fields.values())
