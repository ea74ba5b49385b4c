"""Problems: the error responses of the API, as of RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from orchestrix.api.validation_errors import wrong_fields
from orchestrix.errors import BrokerUnavailable, NotFound, OutcomeUnknown, RetryableError
from orchestrix.lifecycle import Health
from orchestrix.saga.messages import dump
from orchestrix.saga.validation.model_errors import MAX_ERRORS
from orchestrix.telemetry import tracing

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "/docs#"
TOLD: Final = 5
"""How many wrong fields the sentence names; `errors` has all of them."""


class ProblemType(NamedTuple):
    """One row of the table: the status, and the title that never changes."""

    status: int
    title: str


# Every error is a problem of RFC 9457 with a `code` from this table.
CODES: Final[Mapping[str, ProblemType]] = {
    "malformed_json": ProblemType(400, "The body is not valid JSON"),
    "bad_parameter": ProblemType(400, "A query parameter is wrong"),
    "bad_header": ProblemType(400, "A request header is wrong"),
    "bad_request": ProblemType(400, "The request is wrong"),
    "unauthorized": ProblemType(401, "Unauthorized"),
    "forbidden": ProblemType(403, "Not allowed with this token"),
    "foreign_origin": ProblemType(403, "The request comes from another site"),
    "not_found": ProblemType(404, "Not found"),
    "method_not_allowed": ProblemType(405, "The method is not allowed here"),
    "request_timeout": ProblemType(408, "The request took too long to arrive"),
    "already_exists": ProblemType(409, "Already exists"),
    "use_apps": ProblemType(409, "Apps are created elsewhere"),
    "idempotency_in_flight": ProblemType(409, "A request with this key is still in progress"),
    "illegal_transition": ProblemType(409, "Not possible in this state"),
    "group_full": ProblemType(409, "The executor group is full"),
    "no_executors": ProblemType(409, "No executors available"),
    "version_mismatch": ProblemType(412, "The version has changed"),
    "body_too_large": ProblemType(413, "The body is too large"),
    "unsupported_media_type": ProblemType(415, "The body must be JSON"),
    "misdirected": ProblemType(421, "The request was meant for another host"),
    "invalid_body": ProblemType(422, "The body does not fit the schema"),
    "idempotency_key_reused": ProblemType(422, "The key was used for another request"),
    "too_many_requests": ProblemType(429, "Too many requests"),
    "head_too_large": ProblemType(431, "The request headers are too large"),
    "internal_error": ProblemType(500, "Internal error"),
    "not_implemented": ProblemType(501, "Not implemented"),
    "unavailable": ProblemType(503, "Try again later"),
    "mixed_versions": ProblemType(503, "A node is too old for this"),
    "too_many_connections": ProblemType(503, "Too many connections"),
    "outcome_unknown": ProblemType(503, "The outcome is unknown"),
}

_CODE_OF_STATUS: Final = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}

_PASSING: Final = {
    "starting": "This node is starting, and takes requests once its database has answered",
    "stopping": "This node is stopping",
}
_REPEAT: Final = (
    "If the request had an Idempotency-Key, repeat it with that one; if not, look first whether it has happened."
)


class Problem(Exception):
    """An answer that is an error. `members` are added to the body, `headers` to the response."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members

    @property
    def status(self) -> int:
        """The HTTP status."""
        return CODES[self.code].status

    def response(self) -> Response:
        """The problem as it goes over the wire."""
        kind = CODES[self.code]
        return _response(kind, self.code, self.detail, self.headers, self.members)


def invalid_body(errors: Sequence[Mapping[str, str]]) -> Problem:
    """422 that names every wrong field. `errors` hold a JSON pointer (RFC 6901) and a sentence each."""
    texts = [_describe(error["pointer"].removeprefix("/") or "the body", error["detail"]) for error in errors[:TOLD]]
    more = [f"{len(errors) - TOLD}{' or more others' if len(errors) >= MAX_ERRORS else ' more'} are wrong"]
    more = more if len(errors) > TOLD else []
    return Problem("invalid_body", ended("; ".join(texts + more)), errors=[dict(error) for error in errors])


def ended(text: str) -> str:
    """`text` with one mark at its end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def as_sentence(error: Exception) -> str:
    """The error's own text as a sentence."""
    text = str(error)
    return ended(f"{text[:1].upper()}{text[1:]}")


def _describe(name: str, detail: str) -> str:
    return f"{name} {detail}" if detail[:1].islower() else f"{name}: {detail}"


def bad_parameter(name: str, detail: str) -> Problem:
    """400 about the query parameter `name`."""
    return Problem("bad_parameter", f"{name}: {detail}", parameter=name)


def bad_header(name: str, detail: str) -> Problem:
    """400 about the request header `name`."""
    return Problem("bad_header", f"{name}: {detail}", header=name)


def not_found(what: str) -> Problem:
    """404: there is no `what`."""
    return Problem("not_found", f"There is no {what}.")


def internal_error() -> Problem:
    """500 that shows nothing of the cause; the log has the rest under the same correlation id."""
    return Problem("internal_error", "Unexpected error: the log has it under this X-Correlation-ID.")


def cut_short(method: str) -> Problem:
    """503 for a request that the process does not wait for any longer, because it stops."""
    if method in ("GET", "HEAD"):
        return Problem("unavailable", "This node is stopping. Retry in 1 s.", headers={"Retry-After": "1"})
    detail = f"This node stopped before it knew the end, so this may have happened or not. {_REPEAT}"
    return Problem("outcome_unknown", detail, headers={"Retry-After": "1"})


def add_handlers(app: FastAPI, health: Health) -> None:
    """Makes every error of routes and router a problem; `health` knows whether the process only starts or stops."""

    async def unavailable(request: Request, error: Exception) -> Response:
        server = "broker" if isinstance(error, BrokerUnavailable) else "database"
        return _unavailable(health.phase, server)

    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(NotFound, _absent)
    app.add_exception_handler(OutcomeUnknown, _outcome_unknown)
    app.add_exception_handler(RetryableError, unavailable)


def body_of(code: str, detail: str, kind: ProblemType | None = None) -> dict[str, Any]:
    """The members that every problem has; `kind` only for a code that is not in the table."""
    row = kind or CODES[code]
    return {"type": TYPE_PREFIX + code, "title": row.title, "status": row.status, "detail": detail, "code": code}


def _response(
    kind: ProblemType, code: str, detail: str, headers: Mapping[str, str], members: Mapping[str, Any] | None = None
) -> Response:
    context = tracing.current_context()
    trace = {} if context is None else {"traceId": context.trace_id}
    body = {**body_of(code, detail, kind), **trace, **(members or {})}
    return Response(dump(body), kind.status, dict(headers), MEDIA_TYPE)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODE_OF_STATUS.get(error.status_code, f"http_{error.status_code}")
    kind = CODES.get(code) or ProblemType(error.status_code, HTTPStatus(error.status_code).phrase)
    headers, place = dict(error.headers or {}), repr(request.scope["path"][:200])
    detail = f"There is nothing at {place}." if error.status_code == 404 else str(error.detail)
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
        detail = f"{request.method} is not allowed at {place}; allowed are: {headers['Allow']}."
    return _response(kind, code, detail, headers)


def _methods(request: Request) -> set[str]:
    """All methods of the path. The router knows only those of the first route that fits it."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    found: set[str] = {method for route in routes for method in getattr(route, "methods", None) or ()}
    return found | {"HEAD"} if "GET" in found and has_head(request.scope["path"]) else found


def has_head(path: str) -> bool:
    """Whether HEAD, GET without its body (RFC 9110, 9.3.2), is there: a stream has no end that one could wait for."""
    return not is_stream(path)


def is_stream(path: str) -> bool:
    """Whether there can be an answer without an end."""
    return path.endswith(("/events", "/logs"))


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # The first part of a place says that it is in the body.
    return invalid_body(wrong_fields([{**one, "loc": one["loc"][1:]} for one in error.errors()], None)).response()


async def _absent(request: Request, error: Exception) -> Response:
    return Problem("not_found", as_sentence(error)).response()


def _unavailable(phase: str | None, server: str) -> Response:
    why = _PASSING.get(phase or "", f"The {server} is unavailable or overloaded")
    return Problem("unavailable", f"{why}; nothing was changed. Retry in 1 s.", headers={"Retry-After": "1"}).response()


async def _outcome_unknown(request: Request, error: Exception) -> Response:
    detail = f"The connection to the database died during the commit, so this may have happened or not. {_REPEAT}"
    return Problem("outcome_unknown", detail, headers={"Retry-After": "1"}).response()
