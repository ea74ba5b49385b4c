"""Redispatch: publishes commands in flight again under their ids, when an operator or a reset broker requires it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrix import crash
from orchestrix.engine import saga_spans
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.requests import Keyed, Repeated
from orchestrix.errors import NotFound
from orchestrix.outbox import idempotency_keys
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.outbox.rows import unpublished_rows
from orchestrix.persistence import audit, outbox
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables, saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import doubted
from orchestrix.saga.state import Instance

INSTANCES_PER_TRANSACTION = 500


async def redispatch_commands(tx: Transaction, catalog: Catalog, live: Sequence[Instance]) -> int:
    """Writes the rows of the commands that these instances of one table wait for; how many there are.

    They may have been worked on before. If a worker refuses the second copy, that of the first may have done its work
    and its answer been lost: so each instance remembers this, and a step that fails after it is undone too.
    """
    rows = unpublished_rows(catalog, live, tx.now())
    if rows:
        sent = {row.instance_id for row in rows}
        rows = saga_spans.sent_by_request(rows, [one for one in live if one.id in sent])
        doubts = [doubted(one) for one in live if one.id in sent]
        await instances.write_progress(tx, saga_tables_of(live[0].saga), doubts)
    await outbox.insert(tx, rows, claimed_by=None, lease_s=0.0)
    return len(rows)


class _Rollback(Exception):
    """Ends a transaction without a commit."""


@dataclass(frozen=True, slots=True)
class RedispatchRequester:
    """Who asks, and why."""

    actor: str
    reason: str


class RedispatchService:
    """Redispatches by the request of an operator; after a reset of the broker, `BrokerResetDetector` does it by itself.

    Commands keep their ids, which changes nothing where they have arrived. Where it is a job, it is dispatched again
    unless a worker has begun it; the result of an ended one is sent again.
    """

    def __init__(self, database: Database, relay: OutboxRelay, catalog: Catalog, jobs: JobSteps | None = None) -> None:
        self._jobs = jobs or JobSteps(catalog)
        self._database = database
        self._relay = relay
        self._catalog = catalog
        self._keys = idempotency_keys.IdempotencyKeys(database)

    async def redispatch(
        self,
        sagas: Sequence[str] | None,
        ids: Sequence[int] | None,
        *,
        actor: str = "anonymous",
        reason: str = "redispatch",
    ) -> int:
        """How many commands are sent again, of the named sagas (None: of all), or of those instances of one saga.

        Raises `NotFound` for a saga that this process does not know.
        """
        return await self._redispatch(sagas, ids, RedispatchRequester(actor, reason), None)

    async def count(self, sagas: Sequence[str] | None, ids: Sequence[int] | None) -> int:
        """How many commands `redispatch` would send now. Nothing is changed: what it writes is rolled back.

        Raises `NotFound` for a saga that this process does not know.
        """
        names, sent = self._known(sagas), 0
        for pair in (APPS, INSTANCES):
            here, after = [name for name in names if saga_tables_of(name) is pair], 0
            while here and (live := await self._pending_instances(pair, here, after)):
                after = live[-1].id
                sent += await self._count([one for one in live if ids is None or one.id in ids])
        return sent

    async def _count(self, wanted: Sequence[Instance]) -> int:
        sent = 0
        with suppress(_Rollback):
            async with self._database.begin() as tx:
                sent = await self._redispatch_chunk(tx, wanted)
                raise _Rollback
        return sent

    async def redispatch_once(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, *, actor: str, reason: str, key: Keyed[int]
    ) -> int | Repeated:
        """`redispatch`, whose answer is stored for `key` once all commands are in the outbox."""
        return await self._keys.run_once(
            key, lambda: self._redispatch(sagas, ids, RedispatchRequester(actor, reason), key)
        )

    async def _redispatch(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, by: RedispatchRequester, key: Keyed[int] | None
    ) -> int:
        names, sent = self._known(sagas), 0
        for pair in (APPS, INSTANCES):
            here = [name for name in names if saga_tables_of(name) is pair]
            if here:
                sent += await self._send(pair, here, ids)
        return await self._database.run(lambda tx: self._note(tx, names, sent, by, key))

    def _known(self, sagas: Sequence[str] | None) -> list[str]:
        names = [saga.name for saga in self._catalog] if sagas is None else list(sagas)
        unknown = [name for name in names if self._catalog.saga(name) is None]
        if unknown:
            raise NotFound(f"unknown saga {unknown[0]!r}")
        return names

    async def _note(
        self, tx: Transaction, names: Sequence[str], sent: int, by: RedispatchRequester, key: Keyed[int] | None
    ) -> int:
        if key is not None:
            await idempotency_keys.claim(tx, key)
        await audit.insert(tx, [self._audited(names, sent, by)])
        return await idempotency_keys.answer(tx, key, sent)

    async def _send(self, pair: SagaTables, names: Sequence[str], ids: Sequence[int] | None) -> int:
        after, sent = 0, 0
        while live := await self._pending_instances(pair, names, after):
            after = live[-1].id
            wanted = [one for one in live if ids is None or one.id in ids]
            sent += await self._database.run(lambda tx, wanted=wanted: self._redispatch_chunk(tx, wanted))  # type: ignore[misc]
            crash.point("redispatch.after_chunk")
            self._relay.notify()
        return sent

    async def _pending_instances(self, pair: SagaTables, names: Sequence[str], after: int) -> list[Instance]:
        async with self._database.read() as connection:
            return await instances.to_redispatch(connection, pair, names, after, INSTANCES_PER_TRANSACTION)

    async def _redispatch_chunk(self, tx: Transaction, wanted: Sequence[Instance]) -> int:
        return await redispatch_commands(tx, self._catalog, wanted) + await self._jobs.ensure(
            tx, wanted, redispatch=True
        )

    def _audited(self, names: Sequence[str], sent: int, by: RedispatchRequester) -> AuditRow:
        detail = {"sagas": list(names), "sent": sent}
        return AuditRow(at=self._database.now(), actor=by.actor, verb="redispatch", reason=by.reason, detail=detail)
