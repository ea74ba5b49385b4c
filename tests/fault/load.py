"""What do clients see of a system while it is disturbed?"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tests.invariants import Ledger
from tests.support import NO_TLS, eventually

UNREADY_WITHIN: Final = 20.0
"""Seconds in which a node says that its database or broker is away: two heartbeats (I12)."""
ANSWER_WITHIN: Final = 30.0
LIVE_WITHIN: Final = 5.0


class Stream:
    """Starts of apps at a steady rate, each under a name of its own, until the block ends; and what came of each.

    Anything but 200, or 503 with a reason and `Retry-After`, fails the test.
    """

    def __init__(self, urls: Sequence[str], prefix: str, rate: float) -> None:
        self.answered: list[str] = []
        self.refused: list[str] = []
        self.unknown: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._urls, self._prefix, self._pause = itertools.cycle(urls), prefix, 1 / rate
        self._wrong: list[str] = []
        self._numbers = itertools.count()
        self._requests: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._http = httpx.AsyncClient(
            timeout=ANSWER_WITHIN, limits=httpx.Limits(max_connections=200), trust_env=False, verify=NO_TLS
        )

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, *self._requests, return_exceptions=True)
        await self._http.aclose()
        if error is None:
            assert not self._wrong, f"{len(self._wrong)} wrong answers, such as {self._wrong[:3]}"

    def hush(self) -> None:
        """Starts no more; the requests that are open go on."""
        assert self._task is not None
        self._task.cancel()

    async def until(self, enough: Callable[[], bool], *, deadline: float, message: str = "") -> None:
        """Waits while the stream goes on."""
        await eventually(enough, deadline=deadline, message=message or f"enough of {dict(self.outcomes)}")

    async def more(self, count: int) -> None:
        """Waits until so many more have been answered with 200, for half a minute and three times what they need."""
        deadline = 30 + 3 * count * self._pause
        wanted = len(self.answered) + count
        await self.until(lambda: len(self.answered) >= wanted, deadline=deadline, message=f"{count} more answers")

    def check(self, ledger: Ledger) -> None:
        """What was refused with the words that nothing was changed has changed nothing."""
        for name in self.refused:
            assert not ledger.named(name), f"{name} was refused and is there"
        for name in self.unknown:
            assert len(ledger.named(name)) <= 1, f"I1: {name} is there twice"

    async def _run(self) -> None:
        while True:
            task = asyncio.create_task(self._post(next(self._urls), f"{self._prefix}-{next(self._numbers)}"))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            await asyncio.sleep(self._pause)

    async def _post(self, url: str, name: str) -> None:
        try:
            answer = await self._http.post(f"{url}/apps", json={"appName": name, "createdBy": "ada"})
        except httpx.HTTPError as error:
            self.outcomes[type(error).__name__] += 1
            self.unknown.append(name)
            return
        code = "200" if answer.status_code == 200 else _code(answer)
        self.outcomes[code] += 1
        if code == "200":
            self.answered.append(name)
        elif code == "unavailable":
            self.refused.append(name)
        else:
            self.unknown.append(name)
        if code not in ("200", "unavailable", "outcome_unknown"):
            self._wrong.append(f"{answer.status_code} {answer.text}")


def _code(answer: httpx.Response) -> str:
    """The problem's code, if it is one that says all it should."""
    with suppress(ValueError):
        body: dict[str, Any] = answer.json()
        if answer.status_code == 503 and "Retry-After" in answer.headers and body.get("status") == 503:
            return str(body.get("code"))
    return f"strange {answer.status_code}"


class HealthWatch:
    """Asks a node how it is, all the time. Not being alive for a moment fails the test."""

    def __init__(self, url: str) -> None:
        self.ready = False
        """Whether it takes work, and all its components are well."""
        self.takes_work = False
        self.reasons = ""
        """What the node says against itself at the moment, with the components."""
        self._url = url
        self._dead: list[str] = []
        self._http = httpx.AsyncClient(timeout=LIVE_WITHIN, trust_env=False, verify=NO_TLS)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._look()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._http.aclose()
        if error is None:
            assert not self._dead, f"not alive: {self._dead[:3]}"

    async def says(self, *words: str, within: float = UNREADY_WITHIN) -> None:
        """Waits until the node is not ready, for a reason with all these words."""
        await eventually(
            lambda: not self.ready and all(word in self.reasons for word in words),
            deadline=within,
            message=f"not ready because of {words}; it says {self.reasons!r}",
        )

    async def is_well(self, within: float) -> None:
        """Waits until the node is ready."""
        await eventually(lambda: self.ready, deadline=within, message=f"ready again; it says {self.reasons!r}")

    async def _run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(0.1)

    async def _look(self) -> None:
        try:
            live = await self._http.get(f"{self._url}/health/live")
            ready = await self._http.get(f"{self._url}/health/ready")
            overall = await self._http.get(f"{self._url}/health")
        except httpx.HTTPError as error:
            self._dead.append(f"{type(error).__name__} {error}")
            return
        if live.status_code != 200:
            self._dead.append(f"{live.status_code} {live.text}")
        checks = [*ready.json()["checks"], *overall.json()["checks"]]
        self.takes_work = ready.status_code == 200
        self.ready = self.takes_work and overall.status_code == 200
        wrong = [f"{one['component']}: {one.get('reason')}" for one in checks if not one["isHealthy"]]
        self.reasons = "; ".join(dict.fromkeys(wrong))
