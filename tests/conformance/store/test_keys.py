"""Is a verb done once when two nodes are asked with one key at the same time?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from app.broker.topology import saga_topology
from app.orchestration.actions import Acted, Action
from app.orchestration.control import Control
from app.orchestration.relay import OutboxRelay
from app.orchestration.requests import IdempotencyKey, InFlight, KeyReused, Replayed
from app.orchestration.watch import Watch
from app.persistence import audit, idempotency, instances
from app.persistence.engine import Database
from app.persistence.idempotency import StoredAnswer
from app.persistence.pairs import APPS
from sagas.app_provisioning import APP_PROVISIONING
from sagas.engine.asks import Ask, Verb
from sagas.engine.catalog import Catalog
from sagas.engine.state import Instance
from tests.conformance.store.build import some
from tests.fakes.broker import FakeBroker

CATALOG = Catalog([APP_PROVISIONING])


def node(database: Database) -> Control:
    """What does verbs in one process."""
    relay = OutboxRelay(database, FakeBroker(), saga_topology(CATALOG), node="n", lease=5.0, batch=10)
    return Control(database, relay, Watch(database), CATALOG)


def keyed(fingerprint: str = "f") -> IdempotencyKey:
    """A key whose answer is the version."""

    def render(instance: Instance) -> StoredAnswer:
        return StoredAnswer(fingerprint, 200, {}, b"%d" % instance.version)

    return IdempotencyKey("scope", "key-1", fingerprint, render)


def skip(app: Instance, version: int | None = None) -> Action:
    """The step that is out is passed over."""
    return Action("app", app.id, Ask(Verb.SKIP, "ada", "by hand"), version)


def extend(app: Instance) -> Action:
    """Half an hour more."""
    return Action("app", app.id, Ask(Verb.SET_DEADLINE, "ada", "slow", extend_by=timedelta(minutes=30)))


async def verbs(database: Database, app: Instance) -> list[str]:
    """What was done to it."""
    async with database.read() as connection:
        return [row.verb for row in await audit.listing(connection, "app", app.id)]


async def test_two_nodes_that_are_asked_at_once(database: Database, peer: Database) -> None:
    [app] = await some(database, 1)
    async with database.begin() as tx:
        await instances.lock_one(tx, APPS, app.id)
        asked = [asyncio.create_task(node(one).act_once(skip(app, 1), keyed())) for one in (database, peer)]
        done, _ = await asyncio.wait(asked, timeout=0.3)
        assert not done, "both have to wait for the row"
    results = await asyncio.gather(*asked)
    [acted] = [one for one in results if isinstance(one, Acted)]
    assert [one for one in results if one is not acted] == [Replayed(StoredAnswer("f", 200, {}, b"3"))]
    assert (acted.instance.state, acted.instance.version) == ("REGISTERING", 3)
    assert await verbs(database, app) == ["skip"]


async def test_one_node_that_is_asked_many_times_at_once(database: Database) -> None:
    [app], asked = await some(database, 1), node(database)
    results = await asyncio.gather(*(asked.act_once(extend(app), keyed()) for _ in range(10)))
    assert sum(isinstance(one, Acted) for one in results) == 1
    assert results.count(Replayed(StoredAnswer("f", 200, {}, b"2"))) == 9
    assert await asked.act_once(extend(app), keyed("other")) == KeyReused()
    assert await verbs(database, app) == ["set-deadline"]


async def test_nobody_waits_for_ever_for_another_node(served: Database, served_peer: Database) -> None:
    [app] = await some(served, 1)
    async with served.begin() as tx:
        assert await idempotency.claim(tx, "scope", "key-1", "f")
        async with asyncio.timeout(10):
            assert await node(served_peer).act_once(extend(app), keyed()) == InFlight()
    assert await verbs(served, app) == []
