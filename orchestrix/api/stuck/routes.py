"""Stuck routes: what is stuck, over all sagas."""

from __future__ import annotations

from typing import Final

from orchestrix.api.dependencies import Explanation
from orchestrix.api.instances.merged import PAIRS, behind, encode, rank, step_of
from orchestrix.api.operations import Call, Operations
from orchestrix.api.query import Paging
from orchestrix.api.stuck.models import StuckBody, StuckPage
from orchestrix.saga.state import Instance

ORDER: Final = "-createdAt of all"

operations = Operations("control")


@operations.get("/stuck")
async def list_stuck(call: Call, query: Paging) -> StuckPage:
    """List what is stuck.

    Over all sagas that this node knows, the newest first: what waits for an operator, for the broker or for workers
    that do not run or that die at its command, or is overdue; each with the reason and what helps.
    """
    limit, catalog = query.limit, call.context.catalog
    after = behind(ORDER, query.cursor, newest_first=True)
    sagas = [catalog.saga(name) for name in sorted({saga.name for saga in catalog})]
    known = [saga for saga in sagas if saga is not None]
    found = await call.context.stuck.newest(known, limit + 1, dict(zip(PAIRS, after, strict=True)))
    found.sort(key=lambda one: (one.created_at, -rank(one.saga), one.id), reverse=True)
    reasons = await call.context.explainer.several(found[:limit])
    items = [_explained(call, one, why) for one, why in zip(found[:limit], reasons, strict=True)]
    last = found[limit - 1] if len(found) > limit else None
    return StuckPage(items=items, next_cursor=encode(ORDER, last.created_at, last) if last else None)


def _explained(call: Call, one: Instance, why: Explanation | None) -> StuckBody:
    step = step_of(call.context.catalog, one)
    if why is None:  # it was there a moment ago
        return StuckBody.of(one, step=step, sentence=None, next_action=None, since=None)
    more = {"blocker": why.blocker, "sentence": why.sentence, "next_action": why.next_action, "since": why.since}
    return StuckBody.of(one, step=step, **more)
