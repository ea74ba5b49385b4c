"""HTTP client: one request, with limits of time and size for its answer, and sure knowledge whether it was sent.

The vendor's client is used here alone. It follows no redirect, obeys no proxy of the environment, and keeps no cookie.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from orchestrix.errors import Unavailable

MAX_ANSWER_BYTES: Final = 65536
"""Bytes of an answer that are read; the rest is left."""
KEPT_S: Final = 2.0
"""Seconds for which a connection is kept without a request: less than servers keep it."""
_ALWAYS: Final = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "orchestrix"}
_LEFT: Final = "send_request_headers.started"
"""The end of the vendor's name for the event after which a part of the request may have left."""


class NotSent(Unavailable):
    """Nothing of the request has left this process: it surely had no effect."""


class NoAnswer(Unavailable):
    """The request was sent, or a part of it, and no answer came: it may have had its effect."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. With `ip` that address is connected to; `Host` and TLS keep the name of the URL."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    ip: IPv4Address | IPv6Address | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The status, and at most `MAX_ANSWER_BYTES` of the body: less where the rest did not come in time."""

    status: int
    body: bytes = b""


class HttpClient:
    """Sends requests; `keep_alive` keeps connections for the next ones, which can break while one is sent.

    `tls` makes what TLS connections are checked by; it is called once, in a thread, for reading all certificates of the
    system takes long.
    """

    def __init__(
        self, *, keep_alive: bool = False, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
    ) -> None:
        self._keep_alive, self._tls = keep_alive, tls
        self._plain: httpx2.AsyncHTTPTransport | None = None
        self._secure: httpx2.AsyncHTTPTransport | None = None
        self._making = asyncio.Lock()

    async def send(self, request: HttpRequest, timeout_s: float) -> HttpResponse:
        """The answer, of any status, once its head has come. What its body lacks after `timeout_s` seconds is left.

        Raises `NotSent`, and `NoAnswer` where the request has begun to leave.
        """
        sending = _Sending(request, "keep-alive" if self._keep_alive else "close")
        try:
            async with asyncio.timeout(timeout_s):
                await sending.run(await self._transport(request.url))
        except TimeoutError:
            if sending.answer is None:
                raise sending.failure(f"no answer within {timeout_s:.3g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            if sending.answer is None:
                raise sending.failure(_explain(error)) from error
        assert sending.answer is not None, "it has ended without an error"
        return sending.answer

    async def close(self) -> None:
        """Closes what is open; later requests open it again."""
        transports, self._plain, self._secure = (self._plain, self._secure), None, None
        for transport in transports:
            if transport is not None:
                with suppress(Exception):
                    await transport.aclose()

    async def _transport(self, url: str) -> httpx2.AsyncHTTPTransport:
        if not url.startswith("https:"):
            self._plain = self._plain or self._made(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            return self._plain
        async with self._making:
            if self._secure is None:
                self._secure = self._made(await asyncio.to_thread(self._tls))
            return self._secure

    def _made(self, context: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
        # Redirects, cookies and authentication are the business of the client above it, and to have none of
        # them costs time at each request.
        kept = None if self._keep_alive else 0
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=KEPT_S)
        return httpx2.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)


class _Sending:
    """One request under way: whether it has begun to leave, and the answer as soon as its head has come."""

    def __init__(self, request: HttpRequest, connection: str) -> None:
        self._request, self._connection = request, connection
        self._left = False
        self.answer: HttpResponse | None = None

    async def run(self, transport: httpx2.AsyncHTTPTransport) -> None:
        """Sends it, without limits of time."""
        request = self._request
        url, headers, extensions = _connected_to(request)
        headers |= {**_ALWAYS, "Connection": self._connection, **request.headers}
        extensions["trace"] = self._note
        made = httpx2.Request(request.method, url, content=request.body or None, headers=headers, extensions=extensions)
        response = await transport.handle_async_request(made)
        try:
            self.answer = HttpResponse(response.status_code)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            body = b""
            async for part in response.stream:
                body = (body + part)[:MAX_ANSWER_BYTES]
                self.answer = HttpResponse(response.status_code, body)
                if len(body) == MAX_ANSWER_BYTES:
                    return
        finally:
            await response.aclose()

    def failure(self, why: str) -> Unavailable:
        return NoAnswer(why) if self._left else NotSent(why)

    async def _note(self, event: str, _: Mapping[str, Any]) -> None:
        self._left = self._left or event.endswith(_LEFT)


def _connected_to(request: HttpRequest) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The URL to connect to, with the header and the TLS name that keep the request's own."""
    if request.ip is None:
        return request.url, {}, {}
    parts = urlsplit(request.url)
    ip = f"[{request.ip}]" if request.ip.version == 6 else str(request.ip)
    port = f":{parts.port}" if parts.port is not None else ""
    url = parts._replace(netloc=f"{ip}{port}").geturl()
    return url, {"Host": parts.netloc}, {} if _is_ip(parts.hostname) else {"sni_hostname": parts.hostname}


def _is_ip(host: str | None) -> bool:
    with suppress(ValueError):
        ip_address(host or "")
        return True
    return False


def _explain(error: Exception) -> str:
    cause = error.__cause__ or error.__context__
    while cause is not None and (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    text = getattr(cause, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]
