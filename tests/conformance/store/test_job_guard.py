"""Does the guard of jobs find on each database what is owed?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrix import clock
from orchestrix.broker.port import Delivery
from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import JobRow
from orchestrix.jobs import messages
from orchestrix.persistence.engine import Database
from orchestrix.worker.jobs.dispatch import read
from orchestrix.worker.jobs.state_guard import (
    CurrentDispatch,
    InvalidDispatch,
    JobStateGuard,
    ReceivedDispatch,
    StaleDispatch,
    UnknownDispatch,
)
from tests.conformance.store.test_jobs import dispatched, inserted, pending, running, stored


def asked(job: JobRow, **changes: Any) -> ReceivedDispatch:
    """The order for the job's present attempt, changed."""
    delivery = Delivery(b"", dispatch_queue(job.queue or ""), "", "", None, None, None, {}, False, 0, 1, 1)
    return ReceivedDispatch(replace(read(messages.dispatch(job)), **changes), delivery)


async def test_what_is_owed(database: Database) -> None:
    guard = JobStateGuard(database, "me")
    assert await guard.check([]) == []
    first = await dispatched(database, payload={"é": [1, None]}, retries=1, handler="ü")
    lost = rules.ended(first, rules.WORKER_SILENT, database.now(), 0.0)
    second = await stored(database, first, lost)
    second = await stored(database, second, rules.dispatched(second, clock.uuid7(), database.now()))
    busy = await running(database)
    [unsent] = await inserted(database, pending(database))
    forged = replace(unsent, id=clock.uuid7(), history_id=clock.uuid7(), attempt=1)
    whole = replace(second, payload=first.payload)
    orders = [
        asked(whole, payload="a stranger's"),
        asked(replace(first, payload=None)),
        asked(busy),
        asked(replace(whole, handler="other")),
        asked(forged),
        asked(replace(whole, history_id=clock.uuid7())),
        asked(replace(unsent, history_id=clock.uuid7(), attempt=1)),
    ]
    found = await guard.check(orders)
    assert found == [
        CurrentDispatch(asked(whole).dispatch),
        StaleDispatch(),
        StaleDispatch(),
        InvalidDispatch(f"handler: does not belong to job {second.id}"),
        UnknownDispatch("unknown-job"),
        UnknownDispatch("unknown-attempt"),
        UnknownDispatch("unknown-attempt"),
    ]
