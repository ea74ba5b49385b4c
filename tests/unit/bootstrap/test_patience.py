"""Does a process outlast a database that is away for a moment while it starts?"""

from __future__ import annotations

import pytest

from app import clock
from app.bootstrap.node import build_node
from app.bootstrap.patience import persistent
from app.config import Settings
from app.errors import ConfigError, Unavailable


class Away:
    """Answers at the third time."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls, self.error = 0, error

    async def __call__(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if self.calls < 3:
            raise Unavailable("the database is starting up")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "uniform", lambda low, high: 0.0)


async def test_it_asks_again_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    away = Away()
    await persistent(away)
    assert away.calls == 3
    assert [record.message for record in caplog.records] == ["waiting for the database: the database is starting up"]


async def test_what_will_not_be_better_ends_it() -> None:
    wrong = Away(ConfigError("raise its version"))
    with pytest.raises(ConfigError):
        await persistent(wrong)
    assert wrong.calls == 1


async def test_a_node_waits_for_its_definitions(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = build_node(Settings(database_url=sqlite_url), frozenset({"api"}), "amqp://localhost/")
    away = Away()

    async def nothing() -> None:
        return

    monkeypatch.setattr(node.database_watch, "wait_for_schema", nothing)
    monkeypatch.setattr(node.definitions, "record", away)
    for services in (node.duties, node.post):
        monkeypatch.setattr(services, "start", nothing)
    await node.begin()
    assert (away.calls, node.health.started) == (3, True)
