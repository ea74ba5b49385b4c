"""Documentation page: the API's description, which needs no other server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from orchestrix.api.guards.auth import Authenticator
from orchestrix.api.problems import CODES
from orchestrix.saga.messages import dump

STATIC: Final = Path(__file__).with_name("static")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}


ENTRANCE: Final = {"docs": "/docs", "openapi": "/openapi.json", "asyncapi": "/asyncapi.json", "health": "/health"}
"""The answer of `/`, for which no token is needed."""


def add(app: FastAPI, authenticator: Authenticator, asyncapi: Callable[[], Mapping[str, Any]]) -> None:
    """Serves `/openapi.json` and a page at `/docs` that shows it, from this package's own files, and what `asyncapi`
    returns at `/asyncapi.json`, to authenticated clients. `/` leads browsers to the page.
    """
    page = (STATIC / "docs.html").read_text("utf-8").replace("<!-- problems -->", _problem_rows()).encode()
    _serve(app, authenticator, "/docs", page, "text/html")
    _serve(app, authenticator, "/docs/docs.js", (STATIC / "docs.js").read_bytes(), "text/javascript")
    _serve(app, authenticator, "/docs/docs.css", (STATIC / "docs.css").read_bytes(), "text/css")

    async def entrance(request: Request) -> Response:
        vary = {"Vary": "Accept"}
        if "text/html" in request.headers.get("accept", ""):
            return Response(status_code=303, headers={"Location": "/docs", **vary})
        return Response(dump(ENTRANCE), headers=vary, media_type="application/json")

    async def document(request: Request) -> Response:
        authenticator.admit(request)
        return Response(dump(app.openapi()), media_type="application/json")

    async def messages(request: Request) -> Response:
        authenticator.admit(request)
        return Response(dump(asyncapi()), media_type="application/json")

    app.add_api_route("/", entrance, include_in_schema=False)
    app.add_api_route("/asyncapi.json", messages, include_in_schema=False)
    app.add_api_route("/openapi.json", document, include_in_schema=False)


def _serve(app: FastAPI, authenticator: Authenticator, path: str, content: bytes, media_type: str) -> None:
    async def static(request: Request) -> Response:
        authenticator.admit(request)
        return Response(content, headers=HEADERS, media_type=media_type)

    app.add_api_route(path, static, include_in_schema=False)


def _problem_rows() -> str:
    return "\n".join(
        f'<tr id="{escape(code)}"><td><code>{escape(code)}</code></td><td>{kind.status}</td>'
        f"<td>{escape(kind.title)}</td></tr>"
        for code, kind in CODES.items()
    )
