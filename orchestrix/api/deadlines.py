"""Deadline routes: what the engine will do by itself, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api import cursors, serializers
from orchestrix.api.instance_routes import page
from orchestrix.api.listing import CURSOR, DEFAULT_LIMIT, LIMIT, page_response
from orchestrix.api.routes import Call, Route
from orchestrix.api.schemas import WakeUpPage
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


async def list_wake_ups(call: Call) -> Response:
    """The next wake-ups over all sagas that this process knows, the soonest first."""
    limit = call.query.limit(DEFAULT_LIMIT)
    cursor = call.query.text("cursor")
    behind = _behind(cursor) if cursor else (None,) * len(PAIRS)
    found: list[Instance] = []
    async with call.context.database.read() as connection:
        for pair, after in zip(PAIRS, behind, strict=True):
            found += await instances.deadlines(connection, pair, _sagas(call.context.catalog, pair), limit + 1, after)
    found.sort(key=_when)
    last = found[limit - 1] if len(found) > limit else None
    items = [_view(call.context.catalog, one) for one in found[:limit]]
    return page_response(call, items, _cursor(last) if last else None)


def _sagas(catalog: Catalog, pair: SagaTables) -> list[str]:
    return [saga.name for saga in catalog if _rank(saga.name) == PAIRS.index(pair)]


def _rank(saga: str) -> int:
    return 0 if saga == APPS.saga else 1


def _when(instance: Instance) -> tuple[datetime, int, int]:
    assert instance.wake_at is not None  # it was asked for by it
    return instance.wake_at, _rank(instance.saga), instance.id


def _cursor(last: Instance) -> str:
    wake_at, rank, last_id = _when(last)
    return cursors.encode(f"{ORDER} {rank}", wake_at, last_id)


def _behind(cursor: str) -> tuple[After, ...]:
    """Where each pair of tables goes on: the same ids are in both, so those of the other one begin or end there."""
    rank = cursors.which(cursor, [f"{ORDER} {rank}" for rank in range(len(PAIRS))])
    wake_at, last_id = cursors.decode(f"{ORDER} {rank}", cursor, datetime)
    ids = [MAX_ID if place < rank else last_id if place == rank else 0 for place in range(len(PAIRS))]
    return tuple((wake_at, id) for id in ids)


def _view(catalog: Catalog, one: Instance) -> dict[str, Any]:
    return {
        "saga": one.saga,
        "id": one.id,
        "key": one.key,
        "state": one.state,
        "wakeAt": serializers.perhaps(one.wake_at),
        "wakeReason": one.wake_reason,
        "step": _step(catalog, one),
        "attempt": one.attempt,
        "deadlineAt": serializers.perhaps(one.limit),
    }


def _step(catalog: Catalog, one: Instance) -> str | None:
    saga = catalog.of(one)
    here = out(saga, one) if saga else None
    return here.step.name if here else one.progress.awaited


ROUTES: Final = (
    Route(
        "GET",
        "/deadlines",
        "listDeadlines",
        list_wake_ups,
        "What the machine will do by itself, the soonest first",
        "The next wake-up of every saga that waits for an answer, for its next try or for a server.",
        tag="control",
        parameters=(LIMIT, CURSOR),
        answers=page(WakeUpPage),
        problems=("bad_parameter", "unavailable"),
    ),
)
