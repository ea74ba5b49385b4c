"""Deadline routes: what the engine will do by itself, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from orchestrix.api import pagination
from orchestrix.api.deadlines.models import WakeUpBody, WakeUpPage
from orchestrix.api.operations import Call, Operations
from orchestrix.api.query import Paging
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import out
from orchestrix.saga.messages import MAX_ID
from orchestrix.saga.state import Instance

PAIRS: Final = (APPS, INSTANCES)
"""At one and the same time the apps come first."""
ORDER: Final = "wakeAt"
After = tuple[datetime, int]

operations = Operations("control")


@operations.get(
    "/deadlines",
    "listDeadlines",
    "List what the engine will do by itself",
    "The next wake-up of every saga that waits for an answer, for its next try or for a server, the soonest first.",
    query=Paging,
    answer=WakeUpPage,
)
async def list_wake_ups(call: Call, query: Paging) -> WakeUpPage:
    """The next wake-ups over all sagas that this process knows, the soonest first."""
    limit = query.limit
    behind = _behind(query.cursor) if query.cursor else (None,) * len(PAIRS)
    found: list[Instance] = []
    async with call.context.database.read() as connection:
        for pair, after in zip(PAIRS, behind, strict=True):
            found += await instances.deadlines(connection, pair, _sagas(call.context.catalog, pair), limit + 1, after)
    found.sort(key=_when)
    last = found[limit - 1] if len(found) > limit else None
    items = [WakeUpBody.of(one, step=_step(call.context.catalog, one)) for one in found[:limit]]
    return WakeUpPage(items=items, next_cursor=_cursor(last) if last else None)


def _sagas(catalog: Catalog, pair: SagaTables) -> list[str]:
    return [saga.name for saga in catalog if _rank(saga.name) == PAIRS.index(pair)]


def _rank(saga: str) -> int:
    return 0 if saga == APPS.saga else 1


def _when(instance: Instance) -> tuple[datetime, int, int]:
    assert instance.wake_at is not None  # it was asked for by it
    return instance.wake_at, _rank(instance.saga), instance.id


def _cursor(last: Instance) -> str:
    wake_at, rank, last_id = _when(last)
    return pagination.encode(f"{ORDER} {rank}", wake_at, last_id)


def _behind(cursor: str) -> tuple[After, ...]:
    """Where each pair of tables goes on: the same ids are in both, so those of the other one begin or end there."""
    rank = pagination.which(cursor, [f"{ORDER} {rank}" for rank in range(len(PAIRS))])
    wake_at, last_id = pagination.decode(f"{ORDER} {rank}", cursor, datetime)
    ids = [MAX_ID if place < rank else last_id if place == rank else 0 for place in range(len(PAIRS))]
    return tuple((wake_at, id) for id in ids)


def _step(catalog: Catalog, one: Instance) -> str | None:
    saga = catalog.of(one)
    here = out(saga, one) if saga else None
    return here.step.name if here else one.progress.awaited
