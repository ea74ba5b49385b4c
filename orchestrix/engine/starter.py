"""Saga starter: starts sagas, many at a time in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from orchestrix import clock, crash
from orchestrix.engine import saga_spans
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.requests import ExistingSaga, IdempotencyKey, StartedSaga, StartRequest, StartResult
from orchestrix.errors import Contention, NotFound, RetryableError, Unavailable
from orchestrix.lifecycle import Loop, WakeSignal, shielded
from orchestrix.outbox import saga_log
from orchestrix.outbox.idempotency_keys import IdempotencyKeys, KeyTaken
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.outbox.rows import rows_of
from orchestrix.persistence import idempotency
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import instances, transitions
from orchestrix.persistence.sagas.saga_tables import APPS, SagaTables, saga_tables_of
from orchestrix.persistence.sagas.transitions import OutboxBatch
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition
from orchestrix.saga.definition import Saga
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import numbered, start
from orchestrix.telemetry.messaging import begin_commit
from orchestrix.telemetry.trace_context import trace_context

NOT_ACCEPTING = Unavailable("this node accepts no requests: it is starting or stopping")


@dataclass(slots=True)
class _PendingStart:
    request: StartRequest
    answer: asyncio.Future[StartResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SagaStarter:
    """Starts sagas. Requests that come while a commit is under way share the next one.

    State, history and the first command are written in one transaction; the relay publishes after the commit.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        relay: OutboxRelay,
        watch: SagaChangeNotifier,
        *,
        node: str,
        batch: int,
        on_commit: Callable[[Iterable[Instance]], None] = lambda _begun: None,
        jobs: JobSteps | None = None,
    ) -> None:
        self._database = database
        self._on_commit = on_commit
        self._jobs = jobs or JobSteps(catalog)
        self._catalog = catalog
        self._relay = relay
        self._watch = watch
        self._node = node
        self._batch = batch
        self._queue: list[_PendingStart] = []
        self._arrived = WakeSignal()
        self._keys = IdempotencyKeys(database)
        self._accepting = False
        self._loop = Loop("saga starter", self._round)
        self._committing: asyncio.Task[None] | None = None
        self._keyed: set[asyncio.Task[StartResult]] = set()

    async def start(self, request: StartRequest) -> StartResult:
        """Commits a new instance, or says why not. A caller that goes away does not undo what it has asked for.

        Raises `NotFound` for an unknown saga, `Unavailable` (nothing was written) and `OutcomeUnknown`.
        """
        if self._catalog.startable(request.saga) is None:
            raise NotFound(f"unknown saga {request.saga!r}: it is not in the code of this node")
        if not self._accepting:
            raise NOT_ACCEPTING
        root = saga_spans.begin_start(request.start)
        try:
            result = await self._start(saga_spans.rooted(request, root))
            saga_spans.describe_start(root, result)
        finally:
            root.end()
        return result

    async def _start(self, request: StartRequest) -> StartResult:
        if request.idempotency is not None:
            return await self._start_keyed(request, request.idempotency)
        asked = _PendingStart(request)
        self._queue.append(asked)
        self._arrived.set()
        return await self._with_existing(request, await asyncio.shield(asked.answer))

    async def run(self) -> None:
        """Begins to take requests."""
        self._accepting = True
        await self._loop.start()

    async def stop(self) -> None:
        """Refuses what has not begun; a commit under way is finished."""
        self._accepting = False
        await self._loop.stop()
        if self._committing is not None:
            await self._committing
        for asked in self._queue:
            _fail(asked, NOT_ACCEPTING)
        self._queue.clear()
        await asyncio.gather(*self._keyed, return_exceptions=True)

    async def _round(self) -> None:
        if not self._queue:
            await self._arrived.wait(None)
        batch, self._queue = self._queue[: self._batch], self._queue[self._batch :]
        if batch:
            self._committing = asyncio.create_task(self._commit(batch), name="start batch")
            await asyncio.shield(self._committing)

    async def _commit(self, batch: Sequence[_PendingStart]) -> None:
        span = begin_commit(
            [trace_context(asked.request.start.traceparent, asked.request.start.tracestate) for asked in batch]
        )
        try:
            moved, outbox_rows = await self._database.run(
                lambda tx: self._write(tx, [asked.request for asked in batch])
            )
        except RetryableError as away:
            span.fail(type(away).__name__)
            for asked in batch:
                _fail(asked, away)
        except Exception as error:
            span.fail(type(error).__name__)
            span.end()  # the parts have commits of their own
            await self._commit_apart(batch, error)
        else:
            crash.point("start.after_commit")
            saga_spans.describe_commit(span, moved)
            self._announce([one for one in moved if one is not None], outbox_rows)
            for asked, one in zip(batch, moved, strict=True):
                asked.answer.set_result(StartedSaga(one.instance) if one else ExistingSaga(None))
        finally:
            span.end()

    async def _commit_apart(self, batch: Sequence[_PendingStart], error: Exception) -> None:
        """A poison request: halves the batch, until it is alone."""
        if len(batch) == 1:
            _fail(batch[0], error)
            return
        middle = len(batch) // 2
        await self._commit(batch[:middle])
        await self._commit(batch[middle:])

    async def _write(
        self, tx: Transaction, requests: Sequence[StartRequest]
    ) -> tuple[list[SagaTransition | None], list[OutboxRow]]:
        """One answer per request, None where the name is taken, and the outbox rows of all."""
        now, here = self._database.now(), (await installation.known(tx)).id
        places: dict[SagaTables, list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault(saga_tables_of(request.saga), []).append(place)
        written: list[SagaTransition | None] = [None] * len(requests)
        outbox_rows: list[OutboxRow] = []
        for pair, group in sorted(places.items(), key=lambda item: item[0] is not APPS):
            begun = [
                start(self._saga(requests[place]), requests[place].start, clock.uuid7(), now, here) for place in group
            ]
            ids = await instances.insert(tx, pair, begun)
            for place, fresh, new_id in zip(group, begun, ids, strict=True):
                written[place] = numbered(self._saga(requests[place]), fresh, new_id) if new_id is not None else None
            new = [one for place in group if (one := written[place]) is not None]
            changes = [(one.instance.id, change) for one in new for change in one.history]
            rows = rows_of(new)
            await transitions.write(tx, pair, [], changes, OutboxBatch(rows, self._node, self._relay.lease))
            await self._jobs.follow(tx, [(None, one) for one in new])
            outbox_rows += rows
        crash.point("start.before_commit")
        return written, outbox_rows

    def _saga(self, request: StartRequest) -> Saga:
        saga = self._catalog.startable(request.saga)
        assert saga is not None
        return saga

    def _announce(self, moved: list[SagaTransition], outbox_rows: list[OutboxRow]) -> None:
        self._relay.take(outbox_rows)
        self._watch.committed(one.instance for one in moved)
        self._on_commit(one.instance for one in moved)
        saga_log.committed((None, one) for one in moved)

    async def _with_existing(self, request: StartRequest, result: StartResult) -> StartResult:
        if not isinstance(result, ExistingSaga):
            return result
        async with self._database.read() as connection:
            found = await instances.by_key(connection, saga_tables_of(request.saga), request.saga, request.start.key)
        return ExistingSaga(found.id if found else None)

    async def _start_keyed(self, request: StartRequest, key: IdempotencyKey) -> StartResult:
        task = asyncio.create_task(self._keys.run_once(key, lambda: self._commit_keyed(request, key)))
        self._keyed.add(task)
        task.add_done_callback(self._keyed.discard)
        return await shielded(task)

    async def _commit_keyed(self, request: StartRequest, key: IdempotencyKey) -> StartResult:
        try:
            one, outbox_rows = await self._database.run(lambda tx: self._write_keyed(tx, request, key), attempts=1)
        except Contention:
            # Another transaction locks what this needs, which need not be the key: that would be waited for before.
            if (before := await self._keys.answered(key)) is None:
                raise
            return before
        if one is None:
            return await self._keys.answered(key) or await self._with_existing(request, ExistingSaga(None))
        crash.point("start.keyed_after_commit")
        self._announce([one], outbox_rows)
        return StartedSaga(one.instance)

    async def _write_keyed(
        self, tx: Transaction, request: StartRequest, key: IdempotencyKey
    ) -> tuple[SagaTransition | None, list[OutboxRow]]:
        (one,), outbox_rows = await self._write(tx, [request])
        if one is not None and not await idempotency.insert(tx, key.scope, key.key, key.render(one.instance)):
            raise KeyTaken("another request with this key was first")
        return one, outbox_rows


def _fail(asked: _PendingStart, error: Exception) -> None:
    asked.answer.set_exception(error)
    asked.answer.exception()  # its caller may be gone, and then the task has no other one
