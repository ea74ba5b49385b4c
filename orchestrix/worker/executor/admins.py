"""Admins: the nodes of the cluster that take an executor's heartbeats; where one fails the next is tried at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.errors import Unavailable
from orchestrix.lifecycle import DaemonThreadPool
from orchestrix.worker.executor.http_post import HttpAnswer, post

MAX_THREADS: Final = 8
"""Requests at once: one, and those whose name server hangs."""


@dataclass(frozen=True, slots=True)
class AdminFailure:
    """An admin did not accept a request: `cause` distinguishes failures, `sentence` is for people."""

    url: str
    cause: str
    sentence: str


@dataclass(frozen=True, slots=True)
class AdminResult:
    """Which admin accepted a request, None if none has, and the failures before it in the order of the attempts."""

    accepted_by: str | None
    failures: Sequence[AdminFailure]


class Admins:
    """Posts to the admin that accepted the last request, then to the others in their order. Each has `timeout_s`
    seconds for its answer.

    The threads are its own: an author's functions may occupy all those of the loop for hours.
    """

    def __init__(self, urls: Sequence[str], token: str | None, timeout_s: float) -> None:
        self._urls, self._timeout_s = list(urls), timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._threads = DaemonThreadPool(MAX_THREADS)

    async def post(
        self, path: str, fields: Mapping[str, Any], is_over: Callable[[], bool] = lambda: False
    ) -> AdminResult:
        """Posts to one after another until one accepts, or `is_over` before an attempt."""
        body = json.dumps(fields, allow_nan=False).encode()
        failures: list[AdminFailure] = []
        for index, url in enumerate(self._urls):
            if is_over():
                break
            failure = await self._attempt(url, path, body)
            if failure is None:
                self._urls = self._urls[index:] + self._urls[:index]
                return AdminResult(url, failures)
            failures.append(failure)
        return AdminResult(None, failures)

    async def _attempt(self, url: str, path: str, body: bytes) -> AdminFailure | None:
        try:
            answer = await post(self._threads, url + path, body, self._headers, self._timeout_s)
        except Unavailable as error:
            return AdminFailure(url, str(error), str(error))
        return None if answer.accepted else _refused(url, answer)


def _refused(url: str, answer: HttpAnswer) -> AdminFailure:
    return AdminFailure(url, str(answer.status), f"{answer.status} {answer.detail}".rstrip(" ."))
