"""Does a node know at which URLs executors can report?"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Collection

import pytest

from orchestrix.errors import Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener
from orchestrix.registry import callback_urls
from orchestrix.registry.callback_urls import CallbackUrls
from orchestrix.registry.node_listeners import NodeListeners
from tests.servers import templates


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    made = Database(templates.upgraded(sqlite_url))
    yield made
    await made.close()


async def listens(database: Database, node: str, *at: Listener) -> None:
    async with database.begin() as tx:
        await listeners.record(tx, node, at, tx.now())


def nowhere() -> Collection[Listener]:
    return ()


async def test_those_of_the_settings_count_alone(database: Database) -> None:
    await listens(database, "a", ("10.0.0.1", 80))
    assert await CallbackUrls(database, ["https://o.example"], lambda: [("10.0.0.2", 80)])() == ["https://o.example"]


async def test_without_them_a_node_names_itself_and_the_others(database: Database) -> None:
    await listens(database, "a", ("10.0.0.1", 80))
    found = await CallbackUrls(database, (), lambda: [("10.0.0.2", 80)])()
    assert found == ["http://10.0.0.2:80", "http://10.0.0.1:80"]


async def test_a_node_without_an_api_names_the_others(database: Database) -> None:
    await listens(database, "a", ("10.0.0.1", 80))
    assert await CallbackUrls(database, (), nowhere)() == ["http://10.0.0.1:80"]


async def test_without_any_it_is_said_once_what_to_do(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    urls = CallbackUrls(database, (), nowhere)
    with caplog.at_level(logging.WARNING, "orchestrix.registry"):
        for _ in range(3):
            with pytest.raises(Unavailable, match="set ORCHESTRIX_HTTP__PUBLIC_URL on the nodes"):
                await urls()
    assert len(caplog.records) == 1
    await listens(database, "a", ("10.0.0.1", 80))
    assert await urls() == ["http://10.0.0.1:80"]


async def test_it_is_not_read_for_each_call(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = CallbackUrls(database, (), lambda: [("10.0.0.2", 80)])
    assert len(await urls()) == 1
    await listens(database, "a", ("10.0.0.1", 80))
    assert len(await urls()) == 1
    monkeypatch.setattr(callback_urls, "FRESH_S", 0.0)
    urls._read_until = 0.0
    assert len(await urls()) == 2


async def test_a_node_knows_its_port_before_the_first_request(database: Database) -> None:
    node = NodeListeners(database, "a", "127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        node.bound([listening])
        assert set(node.own()) == {listening.getsockname()}
