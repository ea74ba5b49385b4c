"""Does the owner of a child call the executor that it was made for, and another one where that is gone?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import DISPATCHED, FAILED, JobRow
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.domain.registry.routing import UnknownExecutor
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from tests.conformance.store.test_jobs import inserted, now, owned, pending, stored
from tests.integration.jobs.test_executor_calls import A, B, C, Executors, Owner
from tests.servers import templates
from tests.support import eventually


@dataclass
class Group(Owner):
    """As a group of the registry: ADDRESS finds the named executor or none."""

    async def pick(self, tx: Transaction, job: JobRow) -> Sequence[str]:
        if job.routing != "ADDRESS":
            return self.addresses
        if job.routing_address not in self.addresses:
            raise UnknownExecutor(f"no executor has the address {job.routing_address}")
        return [str(job.routing_address)]

    async def child(self, **more: Any) -> JobRow:
        """The second of three children, which node n owns, with its broadcast."""
        common = {"queue": None, "executor_group": "shop"}
        whole = {"routing": "SHARDING_BROADCAST", "broadcast_end": "all", "state": "RUNNING", "payload": {"a": 1}}
        counts = {"children_total": 3, "children_left": 3, "children_failed": 0}
        parent = pending(self.database, **common, **whole, **counts)
        shard = {"parent_id": parent.id, "shard_index": 1, "shard_total": 3, "routing": "ADDRESS"}
        child = pending(self.database, **{**common, **shard, "routing_address": B, "retries": 2, **more})
        await inserted(self.database, parent, child)
        return await self.again(child)

    async def again(self, child: JobRow) -> JobRow:
        """Its next attempt."""
        child = await now(self.database, child)
        moved = rules.dispatched(child, clock.uuid7(), self.database.now())
        return await owned(self.database, "n", await stored(self.database, child, moved))


@pytest.fixture
async def group(sqlite_url: str) -> AsyncIterator[Group]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    yield Group(database, Executors(database))
    await database.close()


async def test_the_executor_that_it_was_made_for_is_called_with_its_shard(group: Group) -> None:
    await group.child()
    await group.until(group.node(), lambda: bool(group.executors.runs))
    [run] = group.executors.runs
    assert (run.address, run.shard_index, run.shard_total, run.payload) == (B, 1, 3, {"a": 1})


async def test_one_that_has_left_is_replaced_at_once(group: Group) -> None:
    group.addresses = [A, C]
    await group.child()
    await group.until(group.node(), lambda: bool(group.executors.runs))
    [run] = group.executors.runs
    assert (run.address in (A, C), run.shard_index) == (True, 1)


async def test_a_lost_one_runs_again_elsewhere_with_its_index(group: Group) -> None:
    child, caller = await group.child(), group.node(probe=0.02)
    group.executors.known[B] = False
    await caller.start()
    await _until_state(group, child, "PENDING", caller)
    assert (await now(group.database, child)).error["type"] == "ExecutorLost"
    await group.again(child)
    await group.until(group.node(), lambda: len(group.executors.runs) == 2)
    again = group.executors.runs[1]
    assert again.address in (A, C)
    assert (again.shard_index, again.attempt) == (1, 2)


async def test_further_attempts_go_on_to_the_next_executor_that_is_not_reached(group: Group) -> None:
    child = await group.child()
    lost = replace(rules.WORKER_SILENT, error={"type": "ExecutorLost", "message": "gone"})
    await stored(group.database, child, rules.ended(child, lost, group.database.now(), 0.5))
    again = await group.again(child)
    group.executors.answers = [(one, CallAnswer.NOT_REACHED) for one in (A, C)]
    await group.until(group.node(), lambda: len(group.executors.runs) == 3)
    assert group.executors.called[-1] == B, "that one last"
    assert sorted(group.executors.called[:2]) == [A, C]
    assert (await now(group.database, again)).state == DISPATCHED
    assert (await now(group.database, again)).routing == "ADDRESS", "what it was made for stays"


async def test_its_end_is_counted(group: Group) -> None:
    child = await group.child(retries=0)
    group.executors.answers = [(B, CallAnswer.REFUSED)]
    caller = group.node()
    await caller.start()
    await _until_state(group, child, FAILED, caller)
    async with group.database.read() as connection:
        [parent] = await jobs.of_ids(connection, [str(child.parent_id)])
    assert (parent.state, parent.children_left, parent.children_failed) == (FAILED, 0, 1), (
        "the others do not exist here"
    )
    assert parent.id in group.changed


async def _until_state(group: Group, child: JobRow, state: str, caller: Any) -> None:
    async def there() -> bool:
        return (await now(group.database, child)).state == state

    await eventually(there, deadline=10.0)
    await caller.stop()
