"""Do the counts for metrics say how many of everything there are, on each database?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from sqlalchemy import update

from orchestrix.domain.nodes import NodeState
from orchestrix.domain.shards.state import LeadTaken, ServiceCheck
from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.cluster import cluster_counts
from orchestrix.persistence.cluster.cluster_counts import OutboxCounts, ServiceShards
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import registrations
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES
from orchestrix.persistence.tables import apps, saga_instances
from tests.conformance.store.build import ended, message, some
from tests.conformance.store.test_dead_letters import letter, redriven
from tests.conformance.store.test_nodes import beat, join
from tests.conformance.store.test_shards import registration, transact

LATE = timedelta(seconds=30)
STATES = {"app": {"APP_INITIATED"}, "order": {"APP_INITIATED"}, "other": {"APP_INITIATED"}}


async def stuck(database: Database) -> dict[str, int]:
    """The stuck of each saga."""
    async with database.read() as connection:
        return dict(await cluster_counts.stuck_sagas(connection, STATES, LATE))


async def active(database: Database, states: Mapping[str, Collection[str]] = STATES) -> dict[str, int]:
    """The active ones in each state."""
    async with database.read() as connection:
        return dict(await cluster_counts.active_sagas(connection, states))


async def test_live_sagas_are_counted_by_their_state(database: Database) -> None:
    assert await active(database) == {}
    one, *_ = await some(database, 3)
    await some(database, 2, INSTANCES, "order")
    assert await active(database) == {"APP_INITIATED": 5}
    assert await active(database, {"app": {"APP_INITIATED"}}) == {"APP_INITIATED": 3}
    async with database.begin() as tx:
        await instances.update(tx, APPS, [(one.version, ended(one))])
    assert await active(database) == {"APP_INITIATED": 4}


async def test_the_stuck_are_counted_once_each(database: Database) -> None:
    assert await stuck(database) == {}
    paused, unsent, hindered, late, *_ = await some(database, 6)
    (other,) = await some(database, 1, INSTANCES, "order")
    long_ago = database.now() - timedelta(minutes=5)
    async with database.begin() as tx:
        for id, values in (
            (paused.id, {"wake_at": None, "wake_reason": None, "blocker": "paused"}),
            (unsent.id, {"wake_reason": "unsent", "wake_at": long_ago}),
            (hindered.id, {"hindered_by": "no_consumer", "wake_at": long_ago}),
            (late.id, {"wake_at": long_ago}),
        ):
            await tx.execute(update(apps).where(apps.c.id == id).values(values))
        await tx.execute(update(saga_instances).where(saga_instances.c.id == other.id).values(wake_at=long_ago))
    assert await stuck(database) == {"app": 4, "order": 1}
    async with database.read() as connection:
        assert await cluster_counts.late_timers(connection, LATE) == 4


async def test_the_outbox_is_as_old_as_its_oldest_message_that_can_leave(database: Database) -> None:
    async with database.read() as connection:
        assert await cluster_counts.outbox_counts(connection) == OutboxCounts(0, 0.0)
    one, two = await some(database, 2)
    now = database.now()
    rows = [message(one.id, 1, created_at=now - timedelta(seconds=600)), message(two.id, 1, created_at=now)]
    async with database.begin() as tx:
        await outbox.insert(tx, rows, claimed_by=None, lease_s=0.0)
        await outbox.park(tx, rows[0].id, "no")
    async with database.read() as connection:
        found = await cluster_counts.outbox_counts(connection)
    assert found.pending == 2
    assert 0 <= found.oldest_s < 300, "the parked one waits for a person"
    async with database.begin() as tx:
        await outbox.unpark(tx, [rows[0].id])
    async with database.read() as connection:
        assert (await cluster_counts.outbox_counts(connection)).oldest_s > 300


async def test_dead_letters_count_until_they_are_redriven(database: Database) -> None:
    one, two = letter("a"), letter("b")
    async with database.begin() as tx:
        await dead_letters.record(tx, [one, two])
    await redriven(database, one)
    async with database.read() as connection:
        assert await cluster_counts.open_dead_letters(connection) == 1


async def test_nodes_by_their_state(database: Database) -> None:
    for node in ("a-1", "b-1"):
        await join(database, node)
    await beat(database, "b-1", NodeState.DRAINING)
    async with database.read() as connection:
        assert await cluster_counts.nodes_by_state(connection) == {"ALIVE": 1, "DRAINING": 1}


async def test_executors_by_app_and_what_can_be_expected_of_them(database: Database) -> None:
    now = database.now()
    async with database.begin() as tx:
        await registrations.record(tx, [Heartbeat("shop", f"http://{one}:1") for one in "abc"], now)
        await registrations.record(tx, [Heartbeat("bank", "http://d:1", state="DRAINING")], now)
        await registrations.record(tx, [Heartbeat("shop", "http://e:1")], now - timedelta(minutes=2))
        await registrations.set_drained(tx, {("shop", "http://c:1"), ("shop", "http://e:1")}, now)
    async with database.read() as connection:
        assert await cluster_counts.executors(connection, timedelta(seconds=45)) == {
            ("bank", "draining"): 1,
            ("shop", "up"): 2,
            ("shop", "drained"): 1,
            ("shop", "silent"): 1,
        }


async def test_services_of_shards_with_members(database: Database) -> None:
    async with database.read() as connection:
        assert await cluster_counts.shards(connection) == []
    await transact(database, [registration("w-1"), registration("w-2")])
    async with database.read() as connection:
        assert await cluster_counts.shards(connection) == [ServiceShards("orders", 10, 0, 0, 0, 0, ("pending",))]
    await transact(database, [LeadTaken("n-1")], 0.1)
    await transact(database, [ServiceCheck("n-1", database.now())], 3.0)
    await transact(database, [registration("w-1")], 0.0, "left")
    async with database.read() as connection:
        found = await cluster_counts.shards(connection)
    assert found == [
        ServiceShards("left", 10, 0, 0, 0, 0, ("pending",)),
        ServiceShards("orders", 10, 10, 5, 5, 1, ("active",)),
    ]
