"""Fences: under which term, and under which epoch, is each write of a simulated node made?

The term is that of the duty whose task writes, the epoch that of the channel whose messages are written. Triggers
compare both with the rows as they are at that moment: one writer at a time, so that is how they are at the commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from orchestrix.broker.port import Broker
from orchestrix.cluster import member
from orchestrix.cluster.leadership import Leadership
from orchestrix.cluster.lease_store import LeaseStore
from orchestrix.domain.leases import Fence
from orchestrix.jobs import job_coordinator
from orchestrix.jobs.events import BatchResult, ChannelBatch, JobEventListener
from orchestrix.leader_duties import Duty
from orchestrix.lifecycle import Service
from orchestrix.persistence.engine import Transaction
from orchestrix.testing.simulation.virtual_time import current_process

FENCE: ContextVar[Fence | None] = ContextVar("fence", default=None)
"""The term of the leader whose duty runs; None outside of duties."""
_READ: ContextVar[dict[str, int] | None] = ContextVar("read", default=None)
"""The epochs under which the jobs are read whose messages are just written."""

_STALE = "term() IS NOT NULL AND NOT EXISTS (SELECT 1 FROM leases WHERE term = term() AND holder = holder())"
_OTHER = "read_epoch(NEW.job_id) IS NOT (SELECT owner_epoch FROM jobs WHERE id = NEW.job_id)"
_STATEMENTS = {
    "jobs": ("INSERT", "UPDATE"),
    "job_attempts": ("INSERT", "UPDATE"),
    "schedules": ("UPDATE",),
    "outbox": ("INSERT",),
    "nodes": ("UPDATE",),
}
TRIGGERS = (
    "CREATE TABLE sim_stale (n INTEGER PRIMARY KEY, what, id, term, holder, present)",
    "CREATE TABLE sim_lines (n INTEGER PRIMARY KEY, history, seq, epoch, present)",
    "CREATE TABLE sim_offers (id PRIMARY KEY)",
    *(
        f"CREATE TRIGGER sim_{table}_{verb} AFTER {verb} ON {table} WHEN {_STALE} BEGIN"
        " INSERT INTO sim_stale (what, id, term, holder, present)"
        f" VALUES ('{verb} {table}', NEW.{'history_id' if table == 'job_attempts' else 'id'}, term(), holder(),"
        " (SELECT term FROM leases)); END"
        for table, verbs in _STATEMENTS.items()
        for verb in verbs
    ),
    f"CREATE TRIGGER sim_lines_of AFTER INSERT ON job_logs WHEN {_OTHER} BEGIN"
    " INSERT INTO sim_lines (history, seq, epoch, present) VALUES (NEW.history_id, NEW.seq, read_epoch(NEW.job_id),"
    " (SELECT owner_epoch FROM jobs WHERE id = NEW.job_id)); END",
    "CREATE TRIGGER sim_offer_of AFTER INSERT ON outbox WHEN NEW.type = 'job.handoff' BEGIN"
    " INSERT OR IGNORE INTO sim_offers (id) VALUES (NEW.id); END",
)


def prepared(raw: sqlite3.Connection) -> None:
    """Gives a handle the functions that the triggers call."""
    raw.create_function("writer", 0, lambda: getattr(current_process(), "name", "nobody"))
    raw.create_function("term", 0, lambda: getattr(FENCE.get(), "term", None))
    raw.create_function("holder", 0, lambda: getattr(FENCE.get(), "holder", None))
    raw.create_function("read_epoch", 1, lambda job: (_READ.get() or {}).get(job))


class Fenced:
    """A duty whose tasks know their term."""

    def __init__(self, duty: Duty, fence: Fence) -> None:
        self._service: Service = duty(fence)
        self._fence = fence

    async def start(self) -> None:
        """Begins: what it starts inherits the term."""
        token = FENCE.set(self._fence)
        try:
            await self._service.start()
        finally:
            FENCE.reset(token)

    async def stop(self) -> None:
        """Stops."""
        await self._service.stop()


class FencedLeadership(Leadership):
    """The product's own, with such duties."""

    def __init__(self, seat: LeaseStore, broker: Broker, node_id: str, duties: Sequence[Duty], **times: Any) -> None:
        super().__init__(seat, broker, node_id, [partial(Fenced, duty) for duty in duties], **times)


class NotedEvents(JobEventListener):
    """The product's own, which says under which epochs it writes."""

    async def _write(self, batch: Sequence[ChannelBatch], tx: Transaction) -> BatchResult:
        token = _READ.set({heard.job_id: heard.epoch for heard in batch})
        try:
            return await super()._write(batch, tx)
        finally:
            _READ.reset(token)


@contextmanager
def noted() -> Iterator[None]:
    """Nodes that are made meanwhile say under which term and epoch they write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member, "Leadership", FencedLeadership)
        patch.setattr(job_coordinator, "JobEventListener", NotedEvents)
        yield
