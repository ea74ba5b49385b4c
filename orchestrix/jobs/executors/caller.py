"""Executor caller: calls executors for the attempts that this node owns, and finds those that are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.domain import jobs as job_rules
from orchestrix.domain.jobs import DISPATCHED, AttemptEnding, JobRow, JobTransition
from orchestrix.domain.registry import executor_calls as rules
from orchestrix.domain.registry.callbacks import callbacks_for
from orchestrix.domain.registry.executor_calls import CallAnswer, CallState, Next
from orchestrix.errors import ConflictError, Contention, RetryableError
from orchestrix.jobs import spans, step_results
from orchestrix.jobs.broadcasts.routing import for_children
from orchestrix.jobs.executors import call_spans
from orchestrix.jobs.executors.attempt_call import AttemptCall
from orchestrix.jobs.executors.attempt_tokens import attempt_token
from orchestrix.jobs.executors.call_assigner import Assigned, CallAssigner
from orchestrix.jobs.executors.ended_attempts import EndedAttempts
from orchestrix.jobs.executors.port import CallResult, ExecutorCalls, ExecutorRun
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import executor_jobs, jobs
from orchestrix.persistence.jobs.executor_jobs import OwnedAttempt

log = logging.getLogger("orchestrix.jobs")

POLL_INTERVAL_S: Final = 1.0
CALL: Final = "call"
STALL_S: Final = 5.0
"""After such a pause between two polls this node has not listened."""
CANCEL_INTERVAL_S: Final = 10.0
DENIAL_INTERVAL_S: Final = 2.0
"""Seconds after which an executor is asked again that denies an attempt: its last report may not be stored yet."""
CALLS_PER_TRANSACTION: Final = 50
"""Attempts whose executors are picked together."""
CALLS_AT_ONCE: Final = 200
"""Attempts that are called, or wait for a place to be called, at once."""
POLL_PAUSE_S: Final = 0.02
"""Seconds at least between two polls."""


class ExecutorCaller:
    """Polls each second, and at `wake`, for attempts that this node owns.

    Where an attempt is called is stored first, by compare-and-set on owner, epoch and attempt; the call follows. So
    whoever owns the job afterwards calls the same address with the same history id, which begins nothing twice.
    Reports to this node are stored at once. Another node that takes one declares the queues of the job, and notifies
    this one. Where that notification can have gone to another owner, or is lost, `consume` makes them and begins to
    read them once the executor is known to have the attempt. `listens` says whether reports can arrive now; `on_end` is
    called when a job has ended here.
    """

    def __init__(
        self,
        database: Database,
        node: str,
        calls: ExecutorCalls,
        *,
        consume: Callable[[str, int], Awaitable[None]],
        listens: Callable[[], bool],
        notify_leader: Callable[[], None],
        on_change: Callable[[Iterable[str]], None],
        sent: Callable[[], None],
        wake: WakeSignal | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._database, self._node, self._client = database, node, calls.client
        self._timings, self._callbacks = calls.timings, calls.callbacks
        self._consume, self._listens = consume, listens
        self._notify_leader, self._on_change, self._sent = notify_leader, on_change, sent
        self._on_end = on_end
        self._calls: dict[tuple[str, int], AttemptCall] = {}
        self._heard: set[str] = set()
        """Attempts whose executors have given a sign of life that is not noted yet."""
        self._assigner = CallAssigner(database, node, for_children(calls.pick), self._store_end)
        self._assigning: asyncio.Task[None] | None = None
        self._calling: set[asyncio.Task[None]] = set()
        self._has_more = False
        """Whether there are attempts that are due, and wait for others to be called."""
        self._key: bytes | None = None
        self._listening_since = self._polled_at = clock.monotonic()
        self._taken: set[str] = set()
        """Jobs that this node has just begun to own."""
        self._ended = EndedAttempts(database, calls.client)
        self._wake = wake or WakeSignal()
        self._loop = Loop("executor calls", self._round)

    @property
    def job_ids(self) -> set[str]:
        """The jobs whose attempts it calls executors for, or follows."""
        return {call.attempt.job_id for call in self._calls.values()}

    def wake(self) -> None:
        """This node may own an attempt that is not called yet, or that is to be stopped."""
        self._wake.set()

    def taken(self, job_ids: Collection[str]) -> None:
        """This node has become the owner of jobs for groups. Those with these ids had another one before, which may
        have gone before it could stop an executor.
        """
        self._taken.update(job_ids)
        self._wake.set()

    async def start(self) -> None:
        """Begins to call."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; calls whose answers are not there yet are made again by the next owner."""
        await self._loop.stop()
        tasks = [one.task for one in self._calls.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._ended.close()
        self._calls.clear()

    async def _round(self) -> None:
        await self.run_once()
        await asyncio.sleep(POLL_PAUSE_S)
        await self._wake.wait(POLL_INTERVAL_S)

    async def run_once(self) -> None:
        """Polls once, and begins what is to be done."""
        await self._note_heard()
        async with self._database.read() as connection:
            found = await executor_jobs.owned(connection, self._node)
        now = clock.monotonic()
        if now - self._polled_at > STALL_S or not self._listens():  # while the database was away, nothing was noted
            self._listening_since = now
        self._polled_at = now
        current = {(one.history_id, one.owner_epoch): one for one in found}
        gone = [call for key, call in self._calls.items() if key not in current and call.task is None]
        await self._ended.stop_executors([call.attempt.history_id for call in gone if not call.ended])
        await self._stop_left()
        self._calls = {key: call for key, call in self._calls.items() if key in current or call.task is not None}
        due: list[AttemptCall] = []
        for key, one in current.items():
            # What was called before this process knew of it may have been taken.
            call = self._calls.setdefault(key, AttemptCall(one, CallState(unsure=one.address is not None), now))
            call.follow(one)
            if call.task is not None or (work := self._next(call, now)) is None:
                continue
            if isinstance(work, str):
                due.append(call)
            else:
                call.task = asyncio.create_task(self._do(call, work), name=f"executor call for job {one.job_id}")
        self._begin_calls(due)

    def _next(self, call: AttemptCall, now: float) -> Callable[[], Awaitable[None]] | str | None:
        """What is to be done for an attempt now."""
        one = call.attempt
        heard = one.heard_at, one.called_at
        listened_s = now - max(self._listening_since, call.since)
        if rules.is_silent(heard, self._database.now(), listened_s, self._timings.dead):
            silent = rules.lost(str(one.address), f"has sent nothing for {self._timings.dead:g} s")
            return partial(self._end, call, silent)
        if one.cancel_reason is not None and not call.cancelled:
            return partial(self._cancel, call, one.cancel_reason)
        if now < call.next_at:
            return None
        if one.state == DISPATCHED and not call.taken:
            return CALL
        reason = one.cancel_reason
        return partial(self._probe, call) if reason is None else partial(self._cancel, call, reason)

    async def _do(self, call: AttemptCall, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (RetryableError, ConflictError) as error:
            log.debug("executor call for job %s deferred: %s", call.attempt.job_id, error)
            call.next_at = clock.monotonic() + POLL_INTERVAL_S
        except Exception as error:
            log.error("an executor call for job %s failed", call.attempt.job_id, exc_info=error)
            call.next_at = clock.monotonic() + self._timings.probe
        finally:
            call.task = None
            if call.moves and call.next_at <= clock.monotonic():  # the next executor need not wait for a poll
                self._wake.set()

    def _begin_calls(self, due: Sequence[AttemptCall]) -> None:
        """Begins to call as many as may be called at once; the others are when some of those have been."""
        busy = self._assigning is not None
        room = 0 if busy else min(CALLS_PER_TRANSACTION, CALLS_AT_ONCE - len(self._calling))
        self._has_more = len(due) > room
        chosen = due[:room]
        if chosen:
            self._assigning = asyncio.create_task(self._assign(chosen), name="executor calls are assigned")
            for call in chosen:
                call.task = self._assigning

    async def _assign(self, chosen: Sequence[AttemptCall]) -> None:
        try:
            urls = await self._callbacks()
            self._key = self._key or await installation.report_key(self._database)
            for call, job in await self._assigned(chosen):
                self._begin_call(call, job, urls)
        except RetryableError as error:
            log.debug("executor calls deferred: %s", error)
            for call in chosen:
                call.next_at = clock.monotonic() + POLL_INTERVAL_S
        finally:
            for call in chosen:
                call.task = None if call.task is self._assigning else call.task
            self._assigning = None
            self._wake_for_more()

    async def _assigned(self, chosen: Sequence[AttemptCall]) -> Assigned:
        """What can be assigned: together, else one by one, so that one that cannot keeps no other from its executor."""
        try:
            return await self._assigner.assign(chosen)
        except RetryableError:
            raise
        except Exception as error:
            if len(chosen) == 1:
                log.error("job %s cannot be given to an executor", chosen[0].attempt.job_id, exc_info=error)
                chosen[0].next_at = clock.monotonic() + POLL_INTERVAL_S
                return []
        return [one for call in chosen for one in await self._assigned([call])]

    def _begin_call(self, call: AttemptCall, job: JobRow, urls: Sequence[str]) -> None:
        work = self._do(call, partial(self._call, call, job, urls))
        call.task = asyncio.create_task(work, name=f"executor call for job {job.id}")
        self._calling.add(call.task)
        call.task.add_done_callback(self._called)

    def _called(self, task: asyncio.Task[None]) -> None:
        self._calling.discard(task)
        self._wake_for_more()

    def _wake_for_more(self) -> None:
        if self._has_more:
            self._wake.set()

    async def _call(self, call: AttemptCall, given: JobRow, urls: Sequence[str]) -> None:
        one, address = call.attempt, str(given.address)
        crash.point("jobs.call.before_call")
        result = await self._run(given, urls, again=call.state.unsure or call.state.calls > 0)
        crash.point("jobs.call.after_answer")
        step, unsure = rules.next_step(str(given.routing), call.state, result.answer), call.state.unsure
        call.state = call.state.called(result.answer)
        if step is Next.END:
            refused = result.answer is CallAnswer.REFUSED
            ending = rules.refused(address, result.detail) if refused else self._unreached(given, result)
            await self._end(call, ending)
        elif step is Next.FOLLOW:
            call.taken, call.next_at = True, clock.monotonic() + self._timings.probe
            self._heard.add(one.history_id)
            if unsure:  # it may have reported already, and another owner was notified
                await self._consume(one.job_id, one.owner_epoch)
        else:
            self._repeat(call, address, step, result.answer)

    @staticmethod
    def _unreached(given: JobRow, result: CallResult) -> AttemptEnding:
        return rules.not_reached([str(given.address)], result.detail)

    @staticmethod
    def _repeat(call: AttemptCall, address: str, step: Next, answer: CallAnswer) -> None:
        call.moves = step is Next.OTHER
        if call.moves:
            call.tried.append(address)
            call.busy = call.busy or answer in (CallAnswer.BUSY, CallAnswer.NOT_CALLED)
        pause = 0.0 if answer is CallAnswer.NOT_REACHED and call.moves else rules.pause_s(call.state.calls)
        call.next_at = clock.monotonic() + pause

    async def _run(self, job: JobRow, urls: Sequence[str], *, again: bool) -> CallResult:
        assert self._key is not None, "it was read before"
        history_id = str(job.history_id)
        address, span = str(job.address), call_spans.begin_run(job, again=again)
        traceparent, tracestate = span.context or (None, None)
        run = ExecutorRun(
            address=address,
            group=str(job.executor_group),
            job_id=job.id,
            history_id=history_id,
            attempt=job.attempt,
            handler=job.handler,
            payload=job.payload,
            timeout_ms=job.timeout_ms,
            correlation_id=job.correlation_id,
            callbacks=[f"{url}/jobs/{job.id}/attempts/{history_id}" for url in callbacks_for(address, urls)],
            token=attempt_token(self._key, history_id),
            traceparent=traceparent,
            tracestate=tracestate,
            shard_index=job.shard_index,
            shard_total=job.shard_total,
        )
        result = await self._client.run(run)
        call_spans.end_run(span, result)
        return result

    async def _probe(self, call: AttemptCall) -> None:
        """Asks the executor whether it has the attempt: one that was restarted does not."""
        one = call.attempt
        call.next_at = clock.monotonic() + self._timings.probe
        if (job := await self._job(one)) is None or one.address is None:
            return
        span = call_spans.begin_probe(job, one.address)
        has = await self._client.has(one.address, str(job.executor_group), one.history_id)
        if has is False:
            call_spans.end_denied(span)
        if has:
            self._heard.add(one.history_id)
            await self._consume(one.job_id, one.owner_epoch)
        elif has is False and self._has_listened_since(call.denied_at):
            await self._end(call, rules.lost(one.address, "does not have this attempt: it was restarted"))
        elif has is False:
            call.next_at = clock.monotonic() + DENIAL_INTERVAL_S
        call.denied_at = clock.monotonic() if has is False else None

    def _has_listened_since(self, at: float | None) -> bool:
        """Whether what had been reported before then would have been read. It may wait in a queue while this node has
        no connection to the broker.
        """
        return at is not None and self._listens() and self._listening_since <= at

    async def _cancel(self, call: AttemptCall, reason: str) -> None:
        """Asks it to stop, and whether it still has the attempt: one that was restarted takes the request, too."""
        again, call.cancelled = call.cancelled, True
        await self._stop_run(call.attempt, reason, again=again)
        await self._probe(call)
        call.next_at = min(call.next_at, clock.monotonic() + CANCEL_INTERVAL_S)

    async def _stop_run(self, one: OwnedAttempt, reason: str, *, again: bool = False) -> None:
        if (job := await self._job(one)) is not None and one.address is not None:
            await call_spans.cancel(self._client, job, one.address, one.history_id, reason, again=again)

    async def _job(self, one: OwnedAttempt) -> JobRow | None:
        """The job, without its payload, which can be long."""
        async with self._database.read() as connection:
            found = await jobs.of_ids(connection, [one.job_id])
        return found[0] if found else None

    async def _note_heard(self) -> None:
        """Notes all signs of life since the last poll."""
        noted, self._heard = self._heard, set()
        if not noted:
            return
        now = self._database.now()
        try:
            await self._database.run(lambda tx: executor_jobs.heard(tx, sorted(noted), now), attempts=1)
        except BaseException as error:
            self._heard |= noted
            if not isinstance(error, Contention):  # one that is locked for long keeps no other waiting
                raise

    async def _stop_left(self) -> None:
        taken, self._taken = self._taken, set()
        try:
            await self._ended.stop_left(taken)
        except BaseException:
            self._taken |= taken
            raise

    async def _end(self, call: AttemptCall, ending: AttemptEnding) -> None:
        one = call.attempt
        moved = await self._database.run(lambda tx: self._write_end(tx, one, ending))
        call.ended = moved is not None
        if moved is not None and moved.stop is not None:
            await self._stop_run(one, str(ending.error.get("message")))

    async def _write_end(self, tx: Transaction, one: OwnedAttempt, ending: AttemptEnding) -> JobTransition | None:
        job = (await jobs.lock_with_parents(tx, [one.job_id])).get(one.job_id)
        expected = (self._node, one.owner_epoch, one.history_id)
        if job is None or not job.live or (job.owner, job.owner_epoch, job.history_id) != expected:
            return None
        return await self._store_end(tx, job, ending)

    async def _store_end(self, tx: Transaction, job: JobRow, ending: AttemptEnding) -> JobTransition:
        moved = job_rules.ended(job, ending, self._database.now(), clock.uniform(0, 1))
        [moved] = spans.end_attempts(tx, [job], [moved])
        tried = [moved.attempt] if moved.attempt is not None else []
        stored = await step_results.store_with_results(tx, [(job.version, moved.job)], tried)
        if stored.results:
            tx.then(self._sent)
        message = str(ending.error.get("message"))
        tx.then(lambda: self._announce(moved.job, message, stored.broadcasts))
        return moved

    def _announce(self, job: JobRow, message: str, broadcasts: Sequence[JobRow]) -> None:
        log.warning("an attempt of job %s has ended: %s", job.id, message)
        self._on_change([job.id, *(one.id for one in broadcasts)])
        self._notify_leader()
        if job.ended:
            self._on_end()
