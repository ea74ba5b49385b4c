"""Is a verb done once when two nodes are asked with one key at the same time?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from orchestrix import clock
from orchestrix.broker.topology import saga_topology
from orchestrix.domain.jobs import JobRow
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.control import Action, ActionResult, SagaControl
from orchestrix.engine.requests import IdempotencyKey, InFlight, KeyReused, Replayed, StartedSaga, StartRequest
from orchestrix.engine.starter import SagaStarter
from orchestrix.errors import Contention
from orchestrix.jobs.submission import JobRequest, JobRequestKey, JobSubmitter
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence import audit, idempotency
from orchestrix.persistence.engine import Database
from orchestrix.persistence.idempotency import StoredAnswer
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.job_targets import JobTarget
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart, start
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import some
from tests.fakes.broker import FakeBroker

CATALOG = Catalog([APP_PROVISIONING])


def node(database: Database) -> SagaControl:
    """What does verbs in one process."""
    relay = OutboxRelay(database, FakeBroker(), saga_topology(CATALOG), node="n", lease=5.0, batch=10)
    return SagaControl(database, relay, SagaChangeNotifier(database), CATALOG)


def keyed(fingerprint: str = "f") -> IdempotencyKey:
    """A key whose answer is the version."""

    def render(instance: Instance) -> StoredAnswer:
        return StoredAnswer(fingerprint, 200, {}, b"%d" % instance.version)

    return IdempotencyKey("scope", "key-1", fingerprint, render)


def skip(app: Instance, version: int | None = None) -> Action:
    """The step that is out is passed over."""
    return Action("app", app.id, ActionRequest(SagaAction.SKIP, "ada", "by hand"), version)


def extend(app: Instance) -> Action:
    """Half an hour more."""
    return Action("app", app.id, ActionRequest(SagaAction.SET_DEADLINE, "ada", "slow", extend_by=timedelta(minutes=30)))


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
    [acted] = [one for one in results if isinstance(one, ActionResult)]
    assert [one for one in results if one is not acted] == [Replayed(StoredAnswer("f", 200, {}, b"3"))]
    assert (acted.instance.state, acted.instance.version) == ("REGISTERING", 3)
    assert await verbs(database, app) == ["skip"]


async def test_one_node_that_is_asked_many_times_at_once(database: Database) -> None:
    [app], asked = await some(database, 1), node(database)
    results = await asyncio.gather(*(asked.act_once(extend(app), keyed()) for _ in range(10)))
    assert sum(isinstance(one, ActionResult) for one in results) == 1
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


async def test_a_start_that_waits_for_something_else_is_not_called_a_repeat(
    served: Database, served_peer: Database
) -> None:
    relay = OutboxRelay(served_peer, FakeBroker(), saga_topology(CATALOG), node="n", lease=5.0, batch=10)
    starter = SagaStarter(served_peer, CATALOG, relay, SagaChangeNotifier(served_peer), node="n", batch=10)
    await starter.run()
    wanted = SagaStart(key="billing", created_by="ada", correlation_id="c", data={})
    request = StartRequest("app", wanted, keyed())
    try:
        async with served.begin() as tx:
            begun = start(APP_PROVISIONING, wanted, clock.uuid7(), served.now())
            await instances.insert(tx, APPS, [begun])
            async with asyncio.timeout(10):
                with pytest.raises(Contention):  # 503: nobody has this key
                    await starter.start(request)
            await tx.execute(text("DELETE FROM apps"))
        assert isinstance(await starter.start(request), StartedSaga)
        assert isinstance(await starter.start(request), Replayed)
    finally:
        await starter.stop()


async def test_a_job_that_waits_for_something_else_is_not_called_a_repeat(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object) -> None:
        raise Contention("a deadlock")

    key = JobRequestKey("scope", "key-1", "f", lambda job: StoredAnswer("f", 201, {}, job.id.encode()))
    submitter, order = JobSubmitter(database, lambda: None), JobRequest(JobTarget("q"), "h")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "insert", busy)
        with pytest.raises(Contention):
            await submitter.submit(order, key)
    assert isinstance(await submitter.submit(order, key), JobRow)
    assert isinstance(await submitter.submit(order, key), Replayed)


async def test_a_job_whose_key_another_node_has_is_a_repeat(served: Database, served_peer: Database) -> None:
    key = JobRequestKey("scope", "key-1", "f", lambda job: StoredAnswer("f", 201, {}, b""))
    async with served.begin() as tx:
        assert await idempotency.claim(tx, "scope", "key-1", "f")
        async with asyncio.timeout(10):
            assert (
                await JobSubmitter(served_peer, lambda: None).submit(JobRequest(JobTarget("q"), "h"), key) == InFlight()
            )
