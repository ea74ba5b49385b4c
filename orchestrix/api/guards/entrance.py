"""Entrance: passes the requests of an ASGI server's application on to the API of the node that runs."""

from __future__ import annotations

from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrix.api.problems import Problem


class Entrance:
    """Passes requests that no route of the application matches to the API of the running node, if there is one.

    `only_here` refuses all requests where the server listens beyond this machine: `serve` would refuse to start.
    """

    def __init__(self, *, only_here: bool) -> None:
        self.inner: ASGIApp | None = None
        self._only_here = only_here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope) if scope["type"] == "http" else None
        answer: ASGIApp | None = refused.response() if refused is not None else self.inner
        if answer is not None:
            await answer(scope, receive, send)

    def _refused(self, scope: Scope) -> Problem | None:
        if self.inner is None:
            text = "This application is not started: its ASGI server must run its lifespan."
            return Problem("unavailable", text, headers={"Retry-After": "1"})
        if self._only_here and not _is_here(scope):
            return Problem(
                "misdirected",
                "Authentication is disabled, so this API answers only on loopback. Set "
                "ORCHESTRIX_API__TOKENS=name:secret,…, or ORCHESTRIX_API__AUTH=none if something else controls access.",
            )
        return None


def _is_here(scope: Scope) -> bool:
    """Whether the server listens on loopback or on no network: it names no host, or the path of a socket.

    Any other name may lead to an address that others reach.
    """
    host, port = scope.get("server") or ("", None)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost") or (port is None and "/" in host)
