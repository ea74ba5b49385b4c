"""Is an executor called only where its name was judged, though the name service says something else each time?"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orchestrix.domain.registry.addresses import AllowList
from orchestrix.persistence.engine import Database
from orchestrix.registry.address_check import AddressCheck
from orchestrix.registry.executor_client import ExecutorClient, NotReached, Taken
from tests.integration.registry.test_executor_client import BODY, DEADLINE_S, SECRETS, answers, rogue
from tests.servers import templates

NAME = "executor.example.com"
METADATA = "169.254.169.254"


class ChangingNames:
    """A name service that answers differently each time, the last answer from then on."""

    def __init__(self) -> None:
        self.answers: list[Sequence[str]] = []
        self.asked = 0

    def getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        assert host == NAME, "a number is not looked up"
        self.asked += 1
        found = self.answers[min(self.asked, len(self.answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in found]


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    made = Database(templates.upgraded(sqlite_url))
    yield made
    await made.close()


@asynccontextmanager
async def caller(
    database: Database, monkeypatch: pytest.MonkeyPatch, *said: Sequence[str], own: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[tuple[ExecutorClient, ChangingNames]]:
    """A client that judges as a node does, and the name service that it asks."""
    names = ChangingNames()
    names.answers += said
    check = AddressCheck(database, AllowList.parse("127.0.0.0/8,*.example.com"), lambda: own, 90.0)
    made = ExecutorClient(check.judged, SECRETS, DEADLINE_S)
    with monkeypatch.context() as patch:
        loop_connects = socket.getaddrinfo

        def getaddrinfo(host: Any, *more: Any, **options: Any) -> Any:
            real = isinstance(host, str) and host.replace(".", "").isdigit()
            return loop_connects(host, *more, **options) if real else names.getaddrinfo(host)

        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield made, names
    await made.close()


async def test_it_is_looked_up_once_for_each_call_and_called_by_what_was_judged(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer after the one that was judged names a place that must not be called."""
    async with (
        rogue(answers(200)) as allowed,
        caller(database, monkeypatch, ["127.0.0.1"], [METADATA], ["127.0.0.1"]) as (client, names),
    ):
        address = allowed.named(NAME)
        assert await client.run("shop", address, BODY) == Taken()
        assert names.asked == 1
        refused = await client.run("shop", address, BODY)
        assert isinstance(refused, NotReached)
        assert "metadata" in refused.reason
        assert not refused.may_change
        assert await client.run("shop", address, BODY) == Taken()
    assert names.asked == 3
    assert len(allowed.heads) == 2


async def test_a_name_that_comes_to_be_that_of_the_api_is_not_called(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rogue(answers(200), host="127.0.0.2") as api:
        own = [("127.0.0.2", api.port)]
        async with caller(database, monkeypatch, ["127.0.0.1", "127.0.0.2"], own=own) as (client, names):
            result = await client.run("shop", api.named(NAME), BODY)
            asked = await client.holds("shop", api.named(NAME), "h-1")
    assert isinstance(result, NotReached)
    assert not result.may_change
    assert isinstance(asked, NotReached)
    assert api.heads == []
    assert names.asked == 2
