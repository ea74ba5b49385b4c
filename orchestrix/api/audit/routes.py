"""Audit routes: what people have done."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from orchestrix.api import pagination
from orchestrix.api.audit.models import AuditBody, AuditPage, AuditQuery
from orchestrix.api.operations import Call, Operations
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditFilter
from orchestrix.persistence.sagas.saga_tables import APPS

ORDER: Final = "-at of audit"

operations = Operations("control")


@operations.get("/audit")
async def list_audit(call: Call, query: AuditQuery) -> AuditPage:
    """List what people have done.

    The newest first: actions on sagas, dead letters, schedules and more, each with who did it and why.
    """
    wanted = AuditFilter(
        actor=query.actor,
        verb=query.action,
        saga=query.saga or (APPS.saga if query.saga_id is not None else None),
        instance_id=query.saga_id,
        after=query.after,
        before=query.before,
    )
    last_seen = pagination.decode(ORDER, query.cursor, datetime) if query.cursor else None
    async with call.context.database.read() as connection:
        found = await audit.page(connection, wanted, query.limit + 1, last_seen)
    items = [AuditBody.of(row, id=id) for id, row in found[: query.limit]]
    cursor = pagination.encode(ORDER, items[-1].at, items[-1].id) if len(found) > query.limit else None
    return AuditPage(items=items, next_cursor=cursor)
