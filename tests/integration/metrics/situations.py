"""Situations that metrics are of: each is brought about by the product's own parts, and ends with a scrape."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
from sqlalchemy import update

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.message_metrics import watch_link
from orchestrix.broker.port import LinkState, Outgoing
from orchestrix.broker.topology import EVENTS
from orchestrix.cluster.cluster_metrics import ClusterMetrics
from orchestrix.cluster.failure_detector import FailureDetector, FailureTimeouts
from orchestrix.config.settings import JobsSettings, load
from orchestrix.development import Development, development
from orchestrix.domain.jobs import ORPHAN_PENDING
from orchestrix.domain.shards.messages import MOST_BYTES
from orchestrix.domain.shards.state import LeadTaken, ServiceCheck
from orchestrix.persistence import dead_letters
from orchestrix.persistence import outbox as outbox_rows
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import registrations
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.persistence.tables import apps
from orchestrix.registry.registrar import Registrar
from orchestrix.saga.catalog import Catalog
from orchestrix.server import application
from orchestrix.shards.effects import ChangeLog
from orchestrix.shards.zmq import ClientSocket
from orchestrix.telemetry import log_rate, sinks
from orchestrix.telemetry.metrics.exposition import render
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import message, some
from tests.conformance.store.test_dead_letters import letter
from tests.conformance.store.test_nodes import join, leader
from tests.conformance.store.test_shards import registration, transact
from tests.integration.jobs.plant import Plant
from tests.integration.jobs.test_handing import ownership, started
from tests.integration.orchestration.rig import Rig
from tests.integration.shards.sockets import PlainClient
from tests.servers import templates
from tests.support import eventually, free_port

Samples = Mapping[str, float]
"""The values of a scrape by their names and labels, as they are written there."""
Situation = Callable[[Path], Coroutine[Any, Any, Samples]]
SAGA: Final = json.dumps("app")


def samples(text: str) -> Samples:
    """The samples in the text of a scrape."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}


def scrape() -> Samples:
    """The samples of this process now."""
    return samples(render("")[1].decode())


@asynccontextmanager
async def store(folder: Path) -> AsyncIterator[Database]:
    """A database with all tables."""
    folder.mkdir(exist_ok=True)
    database = Database(templates.upgraded(f"sqlite+aiosqlite:///{folder / 'test.db'}"))
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Development, httpx.AsyncClient]]:
    """A whole development server in this process, and its client."""
    environment = {
        "ORCHESTRIX_SAGAS": "sagas.app_provisioning",
        "ORCHESTRIX_WORKERS": "workers",
        "ORCHESTRIX_RESOURCES": "app.apps",
        "ORCHESTRIX_GIT__ROOT": str(folder / "repos"),
    }
    async with development(load(environment), folder=folder, broker_ports=[free_port()]) as dev:
        transport = httpx.ASGITransport(application(dev.node))
        await dev.node.start()
        try:
            await dev.node.begin()
            await dev.worker.start()
            await dev.node.settled()
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                yield dev, client
        finally:
            dev.node.health.stopping = True
            await dev.node.resign()
            await dev.worker.stop()
            await dev.node.retire()
            await dev.node.stop()


async def a_saga_in_dev(folder: Path) -> Samples:
    """An app is created over HTTP and completed by a worker; another job has no worker; an event is nonsense."""
    async with running(folder) as (dev, client):
        answer = await client.post("/apps", json={"appName": "billing", "createdBy": "ada"})
        assert answer.status_code == 200, answer.text
        job = await client.post("/jobs", json={"queue": "absent", "handler": "report"})
        assert job.is_success, job.text
        (nonsense,) = [Outgoing(EVENTS, "evt.gitRepoCreated", b"nonsense", "00000000-0000-7000-8000-000000000000")]
        await dev.node.context.broker.publish([nonsense])

        async def there() -> bool:
            now = samples((await client.get("/metrics")).text)
            return (
                now.get(f'saga_completed_total{{saga={SAGA},outcome="completed"}}', 0) > 0
                and now.get("dead_letter_recorded_total", 0) > 0
                and now.get("coordinator_jobs_owned", 0) > 0
                and now.get('coordinator_nodes{state="alive"}', 0) > 0
                and now.get('command_queue_consumers{queue="cmd.createGitRepo"}', 0) > 0
            )

        await eventually(there, deadline=30, message="the app is completed, and the leader has counted")
        return samples((await client.get("/metrics")).text)


async def a_saga_that_fails(folder: Path) -> Samples:
    """A step fails, is tried again, then fails for good: what was done is undone. An event comes twice. Commands wait
    in their queues.
    """
    async with store(folder) as database:
        rig = Rig(database)
        await rig.start()
        try:
            app = await rig.begin("shop")
            await rig.outbox_empty()
            rig.report(app, "evt.gitRepoCreated", output={"repoUrl": "file:///shop"})
            rig.report(app, "evt.gitRepoCreated", output={"repoUrl": "file:///shop"})
            app = await rig.until(app, lambda one: one.version > app.version, message="moved")
            hasty = await rig.begin("quick", saga="hasty")
            await rig.outbox_empty()
            error = {"type": "LookupError", "message": "no", "retryable": True}
            rig.report(hasty, "evt.stepFailed", saga="hasty", error=error)
            await rig.until(hasty, lambda one: one.attempt > 1, message="tried again")
            rig.report(app, "evt.stepFailed", saga="app", error={**error, "retryable": False})
            await rig.reached(app, "COMPENSATING")
            app = await rig.now(app)
            await rig.outbox_empty()
            rig.report(app, "evt.gitRepoDeleted")
            await rig.reached(app, "FAILED")
            rig.broker.waiting = 3
            await rig.wakeups.start()
            await rig.check_consumers()
            return scrape()
        finally:
            await rig.stop()


async def what_the_leader_counts(folder: Path) -> Samples:
    """In the database: an app that is paused, and one that was due long ago; an old message; a dead letter; two nodes;
    an executor that is alive, a drained one, and a silent one; a service of ten shards with one member.
    """
    async with store(folder) as database:
        paused, late, _ = await some(database, 3)
        long_ago = database.now() - timedelta(minutes=5)
        async with database.begin() as tx:
            stuck = {"wake_at": None, "wake_reason": None, "blocker": "paused"}
            await tx.execute(update(apps).where(apps.c.id == paused.id).values(stuck))
            await tx.execute(update(apps).where(apps.c.id == late.id).values(wake_at=long_ago))
            await outbox_rows.insert(tx, [message(late.id, 1, created_at=long_ago)], claimed_by=None, lease_s=0.0)
            await dead_letters.record(tx, [letter("a")])
            now, away = database.now(), long_ago
            await registrations.record(tx, [Heartbeat("shop", "http://a:1"), Heartbeat("shop", "http://b:1")], now)
            await registrations.set_drained(tx, {("shop", "http://b:1")}, now)
            await registrations.record(tx, [Heartbeat("shop", "http://c:1")], away)
        for node in ("a-1", "b-1"):
            await join(database, node)
        await a_service_of_shards(database)
        fence = await leader(database)
        metrics = ClusterMetrics(fence, database, Catalog([APP_PROVISIONING]), 30.0)
        await metrics.start()
        try:

            def counted() -> bool:
                return any(one.startswith("shard_generations") for one in scrape())

            await eventually(counted, deadline=10, message="the leader has counted")
            return scrape()
        finally:
            await metrics.stop()
            assert not [one for one in scrape() if one.startswith(("saga_stuck", "outbox_pending", "shard_assigned"))]


async def a_service_of_shards(database: Database) -> None:
    """`orders` has ten shards, all of which its one member has; the change is counted as its node does that."""
    log = ChangeLog()
    _, effects = await transact(database, [registration("w-1")])
    log.write("orders", effects)
    _, effects = await transact(database, [LeadTaken("n-1")], 0.1)
    log.write("orders", effects)
    _, effects = await transact(database, [ServiceCheck("n-1", database.now())], 3.0)
    log.write("orders", effects)


async def clients_of_shards(folder: Path) -> Samples:
    """Two messages of a client cannot be read; a third finds no room, and an answer nobody. The socket has ended since:
    what it has counted stays.
    """
    socket = ClientSocket("tcp://127.0.0.1:0")
    await socket.start()
    client = PlainClient(socket.endpoint)
    try:
        await client.send(b"two", b"frames")
        await client.send(b"x" * (MOST_BYTES + 1))
        await eventually(lambda: len(client.errors) == 2, deadline=10, message="both are answered")
        socket.waiting.add = lambda message: False  # type: ignore[method-assign]
        await client.register()
        await eventually(lambda: socket.counts.dropped == 1, deadline=10, message="the third is dropped")
        socket.send(b"nobody", b"{}")
    finally:
        await client.close()
        await socket.stop()
    return scrape()


async def a_node_that_hands_its_jobs_off(folder: Path) -> Samples:
    """No other node is there at first: jobs are offered again, then to whoever comes."""
    async with store(folder) as database:
        broker = EmbeddedBroker()
        await broker.start()
        plant = Plant(database, broker.url)
        try:
            node = await plant.node("leader", leads=True, tuned=JobsSettings(beat=2.0, silent=20.0))
            hand = await plant.worker()
            [(job, _)] = await started(plant, hand, 1)
            before = scrape()['coordinator_handoffs_total{result="orphaned"}']
            giving = asyncio.create_task(node.jobs.drain())
            await ownership(plant, job, ORPHAN_PENDING)
            orphaned = 'coordinator_handoffs_total{result="orphaned"}'
            await eventually(lambda: scrape()[orphaned] > before, deadline=10, message="the leader has found it")
            await plant.owned(job, await plant.node("late", tuned=JobsSettings(beat=2.0, silent=20.0)))
            await giving
            return scrape()
        finally:
            await plant.close()
            await broker.stop()


async def a_node_that_dies(folder: Path) -> Samples:
    """The leader finds a node silent."""
    async with store(folder) as database:
        fence = await leader(database)
        await join(database, "a-1")
        async with database.read() as connection:
            (node,) = (await nodes.living(connection)).nodes
        none: Any = SimpleNamespace()
        watch = FailureDetector(fence, database, none, none, FailureTimeouts(1.0, 30.0, 2.0), lambda dead: None)
        await watch._declare_dead(node, "silent")
        return scrape()


async def an_executor_that_registers(folder: Path) -> Samples:
    """An executor registers, and sends a second heartbeat."""
    async with store(folder) as database:
        registrar = Registrar(database)
        await registrar.start()
        try:
            for _ in range(2):
                await registrar.register(Heartbeat("shop", "http://a:1"))
            return scrape()
        finally:
            await registrar.stop()


async def a_broker_that_takes_nothing(folder: Path) -> Samples:
    """One link is blocked by the broker, another one is down."""
    ends = [watch_link(lambda: LinkState.UP, lambda: True), watch_link(lambda: LinkState.DOWN, lambda: False)]
    try:
        return scrape()
    finally:
        for end in ends:
            end()


async def lines_that_are_lost(folder: Path) -> Samples:
    """More lines than a process writes in a second, and a reader of the log that reads nothing."""
    limit = log_rate.LogRateLimit(logging.getLogger("orchestrix.test"), limit=1)
    assert [limit.passes() for _ in range(3)] == [True, False, False]
    stream = sinks.Stream(sys.__stdout__, sinks.Sink(-1, max_lines=0))  # type: ignore[arg-type]
    sinks._streams.append(stream)
    try:
        stream.write("nobody reads this\n")
        return scrape()
    finally:
        sinks._streams.remove(stream)
