"""Does a leader send no more jobs than can be carried away?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from orchestrix.domain.leases import Fence
from orchestrix.errors import Unavailable
from orchestrix.jobs.dispatch import UNDECLARED_ROWS_LIMIT, UNDECLARED_ROWS_POLL_INTERVAL_S, JobDispatcher
from orchestrix.lifecycle import WakeSignal
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.engine import Database
from orchestrix.persistence.outbox import OutboxRow
from tests.support import eventually, holds

pytestmark = pytest.mark.virtual_time


class Asked:
    """A database that is away, and counts how often it is looked into."""

    def __init__(self) -> None:
        self.looks, self.away = 0, True

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Any]:
        self.looks += 1
        if self.away:
            raise Unavailable("it is away")
        yield None


class Carrier:
    """A relay with so many rows in its hands."""

    node, lease = "node-1", 15.0

    def __init__(self, bringing: int) -> None:
        self.undeclared_rows = bringing

    def take(self, rows: Sequence[OutboxRow]) -> None:
        raise AssertionError("nothing is due")

    def notify(self) -> None:
        raise AssertionError("nothing is due")


async def test_what_is_due_waits_while_the_relay_has_enough_to_do() -> None:
    database, relay, due = Asked(), Carrier(UNDECLARED_ROWS_LIMIT), WakeSignal()
    store, outbox = cast(Database, database), cast(OutboxRelay, relay)
    dispatcher = JobDispatcher(store, Fence(1, "node-1"), due, outbox, open_limit=10, silent=30.0)
    await dispatcher.start()
    due.set()
    await holds(lambda: database.looks == 0, during=3 * UNDECLARED_ROWS_POLL_INTERVAL_S)
    relay.undeclared_rows = UNDECLARED_ROWS_LIMIT - 1
    await eventually(
        lambda: database.looks > 0, deadline=30 * UNDECLARED_ROWS_POLL_INTERVAL_S, message="it looks for jobs again"
    )
    await dispatcher.stop()
