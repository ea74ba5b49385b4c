"""HTTP POST: one request from a thread, with a limit of time for the whole of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from orchestrix.errors import Unavailable
from orchestrix.lifecycle import DaemonThreadPool

MAX_ANSWER_BYTES: Final = 65536
MAX_SENTENCE_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The status of an answer, and its sentence in the server's words, where it has one."""

    status: int
    detail: str

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300


async def post(
    threads: DaemonThreadPool, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
) -> HttpAnswer:
    """The answer to the POST, any status. `Unavailable` where there is none within `timeout_s` seconds.

    The request runs in one of `threads`, so that neither a slow name server nor a slow server blocks the loop. After an
    error or a cancellation nothing more is sent, even if the thread still waits for something.
    """
    request = _Request(url, body, headers, timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.get_running_loop().run_in_executor(threads, request.send)
    except TimeoutError:
        raise Unavailable(f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise Unavailable(error.strerror or str(error)) from error
    except (HTTPException, ValueError) as error:  # ValueError: a host name that cannot be encoded
        raise Unavailable(f"its answer is not HTTP ({type(error).__name__})") from error
    finally:
        request.abort()


class _Request:
    """One request: `send` blocks, `abort` ends it from another thread."""

    def __init__(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
        parts = urlsplit(url)
        connection_type = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        # The timeout of each socket operation: a thread does not outlive its request for long.
        self._connection = connection_type(parts.hostname or "", parts.port, timeout=timeout_s)
        self._path, self._body = parts.path, body
        self._headers = {"Content-Type": "application/json", "Connection": "close", **headers}
        self._socket: socket.socket | None = None
        self._aborted = False

    def send(self) -> HttpAnswer:
        with closing(self._connection):
            self._check()
            self._connection.connect()
            self._socket = self._connection.sock
            self._check()  # the name server or the connection may have taken longer than the limit
            self._connection.request("POST", self._path, self._body, self._headers)
            answer = self._connection.getresponse()
            return HttpAnswer(answer.status, "" if 200 <= answer.status < 300 else _sentence(answer))

    def _check(self) -> None:
        if self._aborted:
            raise ConnectionAbortedError

    def abort(self) -> None:
        self._aborted = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _sentence(answer: HTTPResponse) -> str:
    """The detail of a problem (RFC 9457) in one line; for any other body the reason of the status."""
    try:
        problem = json.loads(answer.read(MAX_ANSWER_BYTES))
    except (HTTPException, OSError, ValueError, RecursionError):
        problem = None
    detail = problem.get("detail") if isinstance(problem, dict) else None
    text = "".join(char if char.isprintable() else " " for char in str(detail or answer.reason))
    return " ".join(text.split())[:MAX_SENTENCE_CHARS]
