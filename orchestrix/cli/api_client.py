"""API client: the HTTP calls of the shell commands."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

from orchestrix.cli.endpoints import hidden
from orchestrix.cli.refusals import sentence
from orchestrix.errors import (
    ConfigError,
    ConflictError,
    Invalid,
    NotFound,
    OrchestrixError,
    OutcomeUnknown,
    PermanentError,
    Unavailable,
)

CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 30.0

_ERRORS: dict[int, type[OrchestrixError]] = {
    400: Invalid,
    401: ConfigError,
    403: ConfigError,
    404: NotFound,
    409: ConflictError,
    412: ConflictError,
    408: Unavailable,
    413: Invalid,
    415: Invalid,
    421: ConfigError,
    422: Invalid,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


class AlreadyExists(ConflictError):
    """There is one of that name; `path` is where."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class ApiClient:
    """The API at `url`, asked with `token`. Every call raises the error that fits the answer, else `Unavailable`.

    `withheld`: there is a token, but it is not for this address. `flags` has the option for each name of the API, so
    that its errors can name options.
    """

    def __init__(
        self, url: str, token: str | None = None, *, withheld: bool = False, flags: Mapping[str, str] | None = None
    ) -> None:
        self.url = hidden(url)
        self._flags = flags or {}
        self._withheld = withheld
        self._parts = urlsplit(url)
        self._access = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def authenticated(self) -> bool:
        """Whether it sends a token, by which the API knows who asks."""
        return bool(self._access)

    def get(
        self,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 0.0,
        also: Collection[int] = (),
    ) -> Any:
        """The JSON of a page.

        `timeout_s` is how many seconds the server may wait on purpose; `also` are statuses that are no error here.
        """
        return self._call("GET", path + _query(query), None, {}, timeout_s, also)

    def document(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object of a page."""
        return self._object(self.get(path, query))

    def page(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        """One page of a list: `items` and `nextCursor`."""
        found = self.get(path, query)
        if not isinstance(found, dict) or not isinstance(found.get("items"), list):
            raise self._not_our_api()
        return found

    def instance(self, path: str, query: Mapping[str, Any] | None = None, *, timeout_s: float = 0.0) -> dict[str, Any]:
        """One saga instance; `timeout_s` as for `get`."""
        return self.instance_of(self.get(path, query, timeout_s=timeout_s))

    def all_items(self, path: str, query: Mapping[str, Any] | None = None) -> list[Any]:
        """The items of all pages."""
        items: list[Any] = []
        cursor: str | None = None
        while True:
            page = self.page(path, {**(query or {}), "cursor": cursor})
            items += page["items"]
            cursor = page.get("nextCursor")
            if not cursor:
                return items

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The JSON object that comes for `body`. Raises `OutcomeUnknown` if the answer got lost on its way."""
        try:
            text = json.dumps(body, allow_nan=False).encode("ascii")
        except (ValueError, RecursionError) as wrong:
            raise Invalid(f"the request cannot be written as JSON: {wrong}") from wrong
        sent = {"Content-Type": "application/json", **(headers or {})}
        return self._object(self._call(method, path + _query(query), text, sent))

    def instance_of(self, found: Any) -> dict[str, Any]:
        """`found`, which is to be a saga instance."""
        if not isinstance(found, dict) or not {"id", "state", "version", "createdAt"} <= found.keys():
            raise self._not_our_api()
        return found

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str], silence: float) -> Iterator[http.client.HTTPResponse]:
        """An answer that does not end. A read raises `TimeoutError` after `silence` seconds without a byte."""
        with self._opened("GET", path, None, headers, silence) as response:
            if response.status not in (200, 204):
                self._refuse("GET", response.status, self._read(response, "GET"), response)
            yield response

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float = 0.0,
        also: Collection[int] = (),
    ) -> Any:
        with self._opened(method, path, body, headers, RESPONSE_TIMEOUT_S + timeout_s) as response:
            content = self._read(response, method)
            if not 200 <= response.status < 300 and response.status not in also:
                self._refuse(method, response.status, content, response)
            return self._parsed(content)

    @contextmanager
    def _opened(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> Iterator[http.client.HTTPResponse]:
        with closing(self._connect()) as connection:
            assert connection.sock is not None
            connection.sock.settimeout(timeout)
            with closing(self._ask(connection, method, path, body, headers)) as response:
                yield response

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            connection.close()
            raise Unavailable(
                f"no API answers at {self.url} ({_why(error)}): start one with `orchestrix dev` or "
                "`orchestrix serve`, or say where it is by --api or ORCHESTRIX_API_URL"
            ) from error
        return connection

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        own = {"Accept": "application/json", "Connection": "close", "User-Agent": "orchestrix-cli", **self._access}
        try:
            connection.request(method, self._parts.path + path, body, {**own, **headers})
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(method, error) from error

    def _read(self, response: http.client.HTTPResponse, method: str) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(method, error) from error

    def _lost(self, method: str, error: Exception) -> OrchestrixError:
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
            speaks = " (it speaks AMQP)" if str(error).lower().startswith("amqp") else ""
            return ConfigError(f"{self.url} is no HTTP server{speaks}: check --api and ORCHESTRIX_API_URL")
        if method == "GET":
            return Unavailable(
                f"{self.url} gave no answer ({_why(error)}): try again, or look with `orchestrix doctor`"
            )
        return OutcomeUnknown(
            f"{self.url} took the request but gave no answer ({_why(error)}), so it may or may not have happened: "
            "look at it, then try again"
        )

    def _parsed(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as wrong:
            raise self._not_our_api() from wrong

    def _object(self, found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self._not_our_api()
        return found

    def _not_our_api(self) -> ConfigError:
        return ConfigError(f"{self.url} answers, but not like an Orchestrix API: check --api and ORCHESTRIX_API_URL")

    def _refuse(self, method: str, status: int, content: bytes, response: http.client.HTTPResponse) -> None:
        """Raises the error of a problem (RFC 9457), `OutcomeUnknown` where the request may have been done."""
        problem: Any = None
        with suppress(ValueError, RecursionError):
            problem = json.loads(content)
        if not isinstance(problem, dict) or not {"title", "detail"} & problem.keys():
            if status in (502, 503, 504):
                raise self._not_ready(method, status)
            raise self._not_our_api()
        text = sentence(problem, status, self._flags, response.getheader("Retry-After")) + self._hint(status)
        if problem.get("code") == "already_exists" and isinstance(problem.get("existing"), str):
            raise AlreadyExists(text, problem["existing"])
        kind = OutcomeUnknown if problem.get("code") == "outcome_unknown" else _ERRORS.get(status, PermanentError)
        raise kind(text)

    def _not_ready(self, method: str, status: int) -> Unavailable:
        """The error for an answer of a proxy: it need not know what has become of the request."""
        if method == "GET":
            return Unavailable(f"{self.url} is not ready ({status}): try again in a moment")
        return OutcomeUnknown(
            f"{self.url} is not ready ({status}), and the request may or may not have happened: "
            "look at it, then try again"
        )

    def _hint(self, status: int) -> str:
        if status not in (401, 403):
            return ""
        if self._withheld:
            return f" (the token is sent only to an API that you name: add --api {self.url} or set ORCHESTRIX_API_URL)"
        return f" ({'correct' if self._access else 'set'} ORCHESTRIX_API__TOKEN)"


def _query(query: Mapping[str, Any] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value not in (None, [])}
    try:
        return f"?{urlencode(given, doseq=True)}" if given else ""
    except UnicodeEncodeError as wrong:
        raise Invalid("an argument is not valid text: write it in UTF-8") from wrong


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "no such host"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
