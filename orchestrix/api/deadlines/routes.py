"""Deadline routes: what the engine will do by itself, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from orchestrix.api.deadlines.models import WakeUpBody, WakeUpPage
from orchestrix.api.instances.merged import PAIRS, behind, encode, rank, step_of
from orchestrix.api.operations import Call, Operations
from orchestrix.api.query import Paging
from orchestrix.persistence.sagas import instances
from orchestrix.saga.state import Instance

ORDER: Final = "wakeAt"

operations = Operations("control")


@operations.get("/deadlines")
async def list_deadlines(call: Call, query: Paging) -> WakeUpPage:
    """List what the engine will do by itself.

    The next wake-up of every saga that waits for an answer, for its next try or for a server, the soonest first.
    """
    catalog, limit = call.context.catalog, query.limit
    found: list[Instance] = []
    async with call.context.database.read() as connection:
        for place, (pair, after) in enumerate(zip(PAIRS, behind(ORDER, query.cursor), strict=True)):
            sagas = [saga.name for saga in catalog if rank(saga.name) == place]
            found += await instances.deadlines(connection, pair, sagas, limit + 1, after)
    found.sort(key=lambda one: (_when(one), rank(one.saga), one.id))
    items = [WakeUpBody.of(one, step=step_of(catalog, one)) for one in found[:limit]]
    last = found[limit - 1] if len(found) > limit else None
    return WakeUpPage(items=items, next_cursor=encode(ORDER, _when(last), last) if last else None)


def _when(instance: Instance) -> datetime:
    assert instance.wake_at is not None  # it was asked for by it
    return instance.wake_at
