"""Merged lists: pages over the instances of all sagas, which lie in two pairs of tables with ids of their own."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from orchestrix.api import pagination
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import pending_command
from orchestrix.saga.messages import MAX_ID
from orchestrix.saga.state import Instance

PAIRS: Final = (APPS, INSTANCES)
"""At one and the same time the apps come first."""
After = tuple[datetime, int]


def rank(saga: str) -> int:
    """Which of `PAIRS` has the instances of the saga."""
    return 0 if saga == APPS.saga else 1


def encode(order: str, at: datetime, last: Instance) -> str:
    """The place behind `last`, whose time is `at`."""
    return pagination.encode(f"{order} {rank(last.saga)}", at, last.id)


def behind(order: str, cursor: str | None, *, newest_first: bool = False) -> tuple[After | None, ...]:
    """Where each pair of tables continues. The same ids are in both, so at that time the other one begins or has ended.

    Raises `Problem` 400.
    """
    if cursor is None:
        return (None,) * len(PAIRS)
    here = pagination.which(cursor, [f"{order} {place}" for place in range(len(PAIRS))])
    at, last_id = pagination.decode(f"{order} {here}", cursor, datetime)
    first, end = (MAX_ID, 0) if newest_first else (0, MAX_ID)
    return tuple((at, end if place < here else last_id if place == here else first) for place in range(len(PAIRS)))


def step_of(catalog: Catalog, one: Instance) -> str | None:
    """The step whose command is outstanding, or that is being undone."""
    saga = catalog.of(one)
    here = pending_command(saga, one) if saga else None
    return here.step.name if here else one.progress.awaited
