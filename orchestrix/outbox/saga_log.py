"""Saga log: debug lines by which a whole saga can be followed by its correlation id."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.messages import Event
from orchestrix.saga.state import Instance

log = logging.getLogger("orchestrix.sagas")


def committed(moved: Iterable[Instance]) -> None:
    """One debug line for each instance that has just been committed in a new state."""
    if log.isEnabledFor(logging.DEBUG):
        for one in moved:
            log.debug("%s %d is %s", one.saga, one.id, one.state, extra={"correlation_id": one.correlation_id})


def sent(rows: Iterable[OutboxRow]) -> None:
    """One debug line for each message that the broker has confirmed."""
    if log.isEnabledFor(logging.DEBUG):
        for row in rows:
            extra = {"correlation_id": row.correlation_id}
            log.debug("%s %d: sent %s", row.saga, row.instance_id, row.type, extra=extra)


def ignored(event: Event, reason: str) -> None:
    """One debug line for an event that changed nothing."""
    if log.isEnabledFor(logging.DEBUG):
        extra = {"correlation_id": event.correlation_id}
        log.debug("%s for %d is ignored: %s", event.type, event.app_id, reason, extra=extra)
