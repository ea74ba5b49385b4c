"""Operations: how the API's calls are declared, served and described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from orchestrix.api import problems
from orchestrix.api.answers import Answer, Page, respond
from orchestrix.api.auth import ANONYMOUS, Door, client
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.idempotency import key_of
from orchestrix.api.pagination import next_link
from orchestrix.api.query import Query, read_query
from orchestrix.api.request_body import parsed, read_object, read_perhaps
from orchestrix.domain.idempotency import Keyed
from orchestrix.saga.messages import storable

R = TypeVar("R")

MAX_PART: Final = 1000
"""Code points that a part of a path may have: more than any name."""


@dataclass(slots=True)
class Call:
    """One request of somebody who may ask. `sent` is its body, where the operation has one."""

    context: ApiContext
    door: Door
    request: Request
    actor: str
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

    def key(self, render: Callable[[R], Response], sent: Mapping[str, Any] | None = None) -> Keyed[R] | None:
        """The client's `Idempotency-Key`, if there is one. `render` makes the answer that is stored for it."""
        return key_of(self.request, self.actor, self.sent if sent is None else sent, render)


Handler = Callable[..., Awaitable[Answer | Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: what it does, and what its users must know of it.

    The handler gets the call; then what `of` finds in the path, which may be a problem 404; then the query; then the
    body: those of them that are declared. An answer that it returns has the `status`; a response goes as it is.
    `headers` are those of requests, `problems` the codes beside those that follow from the rest. Without a `query`
    model all parameters pass, for probes that add some against caches. Nobody needs a token for what is `public`.
    """

    method: str
    path: str
    name: str
    handler: Handler
    summary: str
    about: str
    tag: str
    of: Callable[[Call], Any] | None = None
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
    events: Mapping[str, type[Answer]] = field(default_factory=dict)
    """The data of server-sent events, by their names, if it can be a stream."""
    headers: Sequence[str] = ()
    problems: Sequence[str] = ()
    public: bool = False


class Operations:
    """The operations of one noun, in the order of their declaration."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.all: list[Operation] = []
        self.get = partial(self._declared, "GET")
        self.post = partial(self._declared, "POST")
        self.patch = partial(self._declared, "PATCH")
        self.delete = partial(self._declared, "DELETE")

    def _declared(
        self, method: str, path: str, name: str, summary: str, about: str, **more: Any
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            fields = {"method": method, "path": path, "name": name, "summary": summary, "about": about, **more}
            self.all.append(Operation(handler=handler, tag=self._tag, **fields))
            return handler

        return declare


def add(app: FastAPI, context: ApiContext, door: Door, operations: Sequence[Operation]) -> None:
    """Serves the operations to whom `door` lets in."""
    for one in operations:
        endpoint = _endpoint(context, door, one)
        app.add_api_route(one.path, endpoint, methods=[one.method], name=one.name, include_in_schema=False)


def _endpoint(context: ApiContext, door: Door, one: Operation) -> Callable[[Request], Awaitable[Response]]:
    handler, of, query, body = one.handler, one.of, one.query, one.body if one.writes_body else None
    asks = query is not None and bool(query.model_fields)
    read = read_object if body is not None and needs_body(body) else read_perhaps

    async def endpoint(request: Request) -> Response:
        call = Call(context, door, request, ANONYMOUS if one.public else door.admit(request))
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
        answer = await handler(*given)
        if isinstance(answer, Response):
            return answer
        return respond(answer, one.status, next_link(request, answer.next_cursor) if isinstance(answer, Page) else None)

    return endpoint


def needs_body(model: type[BaseModel]) -> bool:
    """Whether the body cannot be left out."""
    return any(field.is_required() for field in model.model_fields.values())
