"""Executor client: the calls of a node to an executor, each with one of a few results.

An address is judged at each call, and the IP that was judged is connected to; `Host` and TLS keep its name. Calls are
signed and carry no secret. No redirect is followed; an answer is bounded in time and size. See docs/executors.md.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias

from pydantic import SecretStr

from orchestrix import clock
from orchestrix.domain.registry.addresses import ExecutorAddress, IpAddress
from orchestrix.domain.registry.signatures import SIGNATURE_HEADER, sign
from orchestrix.errors import Invalid, Unavailable
from orchestrix.http_client import HttpClient, HttpRequest, HttpResponse, NoAnswer, NotSent
from orchestrix.saga.messages import dump

MOST_CALLS: Final = 100
MOST_CALLS_OF_ADDRESS: Final = 4
MAX_SENTENCE_CHARS: Final = 300
_PHRASES: Final = {one.value: one.phrase for one in HTTPStatus}

Judge: TypeAlias = Callable[[ExecutorAddress], Awaitable[Collection[IpAddress]]]
"""The IP addresses by which an address may be called, as `AddressCheck.judged`."""


@dataclass(frozen=True, slots=True)
class Taken:
    """It has taken the attempt, or runs it, or has run it: it runs once."""

    status: int = field(default=200, compare=False)


@dataclass(frozen=True, slots=True)
class Busy:
    """It does not take the attempt now: `status` 409 where it is full, 503 where it stops."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """It does not take the attempt, and would not later."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It was called, and there is no answer that says what became of it: it may have taken the attempt."""

    reason: str
    status: int | None = field(default=None, compare=False)
    """That of an answer of 500 or more; None without an answer."""


@dataclass(frozen=True, slots=True)
class NotReached:
    """It surely did not get the call. `may_change` is False where its address must not be called."""

    reason: str
    may_change: bool = True


@dataclass(frozen=True, slots=True)
class NotCalled:
    """Nothing was sent: other calls to it, or of this node, have had no answer for as long as a call may take."""

    reason: str


RunResult: TypeAlias = Taken | Busy | Refused | Unknown | NotReached | NotCalled
LookupResult: TypeAlias = Literal["held", "denied"] | Unknown | NotReached
"""What an executor says of an attempt: that it has it, or that it does not know it."""


class NoPlaceError(Exception):
    """A call had no place in time."""


class CallLimits:
    """How many calls are under way at once: of this node, and to each address. Further ones wait.

    Who waits for its address takes no place of the others.
    """

    def __init__(self, calls: int = MOST_CALLS, of_address: int = MOST_CALLS_OF_ADDRESS) -> None:
        self._all, self._of_address = asyncio.Semaphore(calls), of_address
        self._addresses: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def slot(self, address: str, wait_s: float | None = None) -> AsyncIterator[None]:
        """A place for a call to the address in the block. Raises `NoPlaceError` after `wait_s` seconds without one."""
        gate, users = self._addresses.get(address) or (asyncio.Semaphore(self._of_address), 0)
        self._addresses[address] = gate, users + 1
        try:
            async with AsyncExitStack() as places:
                try:
                    async with asyncio.timeout(wait_s):
                        await places.enter_async_context(gate)
                        await places.enter_async_context(self._all)
                except TimeoutError:
                    raise NoPlaceError from None
                yield
        finally:
            users = self._addresses[address][1] - 1
            if users:
                self._addresses[address] = gate, users
            else:
                del self._addresses[address]


class ExecutorClient:
    """Calls executors. `secrets` are the registry tokens by app, of all apps by the empty name; without one only what
    is on this machine is called, unsigned. Each call has `timeout_s` seconds, once it has its place within `limits`.
    """

    def __init__(
        self,
        judge: Judge,
        secrets: Mapping[str, SecretStr],
        timeout_s: float,
        limits: CallLimits | None = None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self._judge, self._secrets, self._timeout_s = judge, secrets, timeout_s
        self._limits = limits or CallLimits()
        self._client = HttpClient(tls=tls)

    async def run(
        self, app: str, address: ExecutorAddress, fields: Mapping[str, Any], trace: Mapping[str, str] | None = None
    ) -> RunResult:
        """Asks it to run an attempt; `fields` are the body, `trace` the headers of the trace context.

        The same attempt may be asked for again, at the same address: it runs once. One that hangs keeps no call waiting
        for longer than one may take, so that attempts which it has not got can be given to others.
        """
        try:
            answer = await self._call(app, address, "POST", "/run", dump(fields), trace, self._timeout_s)
        except NoPlaceError:
            return NotCalled(f"other calls to {address} have had no answer for {self._timeout_s:g} s")
        if not isinstance(answer, HttpResponse):
            return answer
        status = answer.status
        if 200 <= status < 300:
            return Taken(status)
        if status in (HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE):
            return Busy(status, _sentence(answer))
        if 300 <= status < 400:
            return Refused(status, f"{_sentence(answer)}: redirects are not followed")
        return Refused(status, _sentence(answer)) if status < 500 else Unknown(f"{status} {_sentence(answer)}", status)

    async def cancel(
        self,
        app: str,
        address: ExecutorAddress,
        job_id: str,
        history_id: str,
        reason: str,
        trace: Mapping[str, str] | None = None,
    ) -> Taken | Unknown | NotReached:
        """Asks it to stop an attempt. What is lost is repeated in the answers to its reports."""
        fields = {"jobId": job_id, "historyId": history_id, "reason": reason}
        answer = await self._call(app, address, "POST", "/cancel", dump(fields), trace)
        if not isinstance(answer, HttpResponse):
            return answer
        return Taken() if 200 <= answer.status < 300 else Unknown(f"{answer.status} {_sentence(answer)}")

    async def holds(self, app: str, address: ExecutorAddress, history_id: str) -> LookupResult:
        """Asks whether it has the attempt. Only a plain 404 is a denial."""
        answer = await self._call(app, address, "GET", f"/runs/{history_id}", b"", None)
        if not isinstance(answer, HttpResponse):
            return answer
        if 200 <= answer.status < 300:
            return "held"
        if answer.status == HTTPStatus.NOT_FOUND:
            return "denied"
        return Unknown(f"{answer.status} {_sentence(answer)}")

    async def healthy(self, app: str, address: ExecutorAddress) -> str | None:
        """None if it answers `GET /health` with a success, else why not."""
        answer = await self._call(app, address, "GET", "/health", b"", None)
        if not isinstance(answer, HttpResponse):
            return answer.reason
        return None if 200 <= answer.status < 300 else f"{answer.status} {_sentence(answer)}"

    async def close(self) -> None:
        """Closes what is open."""
        await self._client.close()

    async def _call(
        self,
        app: str,
        address: ExecutorAddress,
        method: str,
        path: str,
        body: bytes,
        trace: Mapping[str, str] | None,
        wait_s: float | None = None,
    ) -> HttpResponse | Unknown | NotReached:
        async with self._limits.slot(str(address), wait_s):
            try:
                async with asyncio.timeout(self._timeout_s):
                    ips = await self._judge(address)
            except Invalid as refused:
                return NotReached(str(refused), may_change=False)
            except TimeoutError:
                return NotReached(f"{address.host} could not be resolved within {self._timeout_s:g} s")
            except Unavailable as unavailable:
                return NotReached(str(unavailable))
            token = self._token(app)
            if token is None and not all(ip.is_loopback for ip in ips):
                reason = f"{address} is not on this machine, and without ORCHESTRIX_REGISTRY__TOKEN no other is called"
                return NotReached(reason, may_change=False)
            headers = {**(trace or {}), **({"Content-Type": "application/json"} if body else {})}
            if token is not None:
                headers[SIGNATURE_HEADER] = sign(token, body, clock.now().timestamp())
            return await self._sent([HttpRequest(method, f"{address}{path}", body, headers, ip) for ip in ips])

    async def _sent(self, requests: Collection[HttpRequest]) -> HttpResponse | Unknown | NotReached:
        """To one IP after another, until one is reached."""
        until = clock.monotonic() + self._timeout_s
        why = "it has no IP address"
        for request in requests:
            if (left := until - clock.monotonic()) <= 0:
                break
            try:
                return await self._client.send(request, left)
            except NotSent as error:
                why = str(error)
            except NoAnswer as error:
                return Unknown(str(error))
        return NotReached(why)

    def _token(self, app: str) -> str | None:
        secret = self._secrets.get(app) or self._secrets.get("")
        return None if secret is None else secret.get_secret_value()


def _sentence(answer: HttpResponse) -> str:
    """What the answer says, in one line: the `detail` of a problem (RFC 9457), else the phrase of its status."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        body = None
    detail = body.get("detail") if isinstance(body, dict) else None
    if not isinstance(detail, str):
        detail = _PHRASES.get(answer.status, "")
    text = "".join(char if char.isprintable() else " " for char in detail)
    return " ".join(text.split())[:MAX_SENTENCE_CHARS] or f"status {answer.status}"
