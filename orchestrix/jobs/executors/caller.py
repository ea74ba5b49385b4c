"""Executor caller: calls executors for the attempts that this node owns, and finds those that are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.domain import jobs as job_rules
from orchestrix.domain.job_broadcasts import routed
from orchestrix.domain.jobs import DISPATCHED, AttemptEnding, JobRow, JobTransition
from orchestrix.domain.registry import executor_calls as rules
from orchestrix.domain.registry.callbacks import callbacks_for
from orchestrix.domain.registry.executor_calls import CallAnswer, CallState, Next
from orchestrix.domain.registry.routing import NoExecutors, Strategy, UnknownExecutor
from orchestrix.errors import ConflictError, NotFound, RetryableError
from orchestrix.jobs import spans, step_results
from orchestrix.jobs.broadcasts.routing import for_children
from orchestrix.jobs.executors import call_spans
from orchestrix.jobs.executors.attempt_tokens import attempt_token
from orchestrix.jobs.executors.ended_attempts import EndedAttempts
from orchestrix.jobs.executors.port import CallResult, ExecutorCalls, ExecutorRun
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import executor_jobs, jobs
from orchestrix.persistence.jobs.executor_jobs import OwnedAttempt

log = logging.getLogger("orchestrix.jobs")

POLL_INTERVAL_S: Final = 1.0
STALL_S: Final = 5.0
"""After such a pause between two polls this node has not listened."""
CANCEL_INTERVAL_S: Final = 10.0
DENIAL_INTERVAL_S: Final = 2.0
"""Seconds after which an executor is asked again that denies an attempt: its last report may not be stored yet."""
ATTEMPTS_LIMIT: Final = 2000


@dataclass(slots=True)
class _Call:
    """What this process knows of one attempt under one epoch."""

    attempt: OwnedAttempt
    state: CallState
    tried: list[str] = field(default_factory=list)
    moves: bool = False
    """Whether another address is to be picked."""
    busy: bool = False
    taken: bool = False
    next_at: float = 0.0
    denied: bool = False
    cancelled: bool = False
    """Whether the executor was asked once to stop."""
    ended: bool = False
    """Whether this node has ended it."""
    asked_for: datetime | None = None
    """When the process registered that was asked because of that."""
    task: asyncio.Task[None] | None = None

    def follow(self, found: OwnedAttempt) -> None:
        """Takes over what was read of it now. Where another process has its address, that is asked at once."""
        self.attempt = found
        if found.registered_at != self.asked_for and rules.is_restarted(found.called_at, found.registered_at):
            self.next_at, self.asked_for = 0.0, found.registered_at


class ExecutorCaller:
    """Polls each second, and at `wake`, for attempts that this node owns.

    Where an attempt is called is stored first, by compare-and-set on owner, epoch and attempt; the call follows. So
    whoever owns the job afterwards calls the same address with the same history id, which begins nothing twice.
    The queues of a job are declared by its first report, of which this node is notified. Where that notification can
    have gone to another owner, or is lost, `consume` makes them and begins to read them once the executor is known to
    have the attempt. `listens` says whether reports can arrive now; `on_end` is called when a job has ended here.
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
        self._pick = for_children(calls.pick)
        self._timings, self._callbacks = calls.timings, calls.callbacks
        self._consume, self._listens = consume, listens
        self._notify_leader, self._on_change, self._sent = notify_leader, on_change, sent
        self._on_end = on_end
        self._calls: dict[tuple[str, int], _Call] = {}
        self._heard: set[str] = set()
        """Attempts whose executors have given a sign of life that is not noted yet."""
        self._listening_since = self._polled_at = clock.monotonic()
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
        await self._wake.wait(POLL_INTERVAL_S)

    async def run_once(self) -> None:
        """Polls once, and begins what is to be done."""
        await self._note_heard()
        async with self._database.read() as connection:
            found = await executor_jobs.owned(connection, self._node, ATTEMPTS_LIMIT)
        now = clock.monotonic()
        if now - self._polled_at > STALL_S or not self._listens():  # while the database was away, nothing was noted
            self._listening_since = now
        self._polled_at = now
        current = {(one.history_id, one.owner_epoch): one for one in found}
        gone = [call for key, call in self._calls.items() if key not in current and call.task is None]
        await self._ended.stop_executors([call.attempt.history_id for call in gone if not call.ended])
        self._calls = {key: call for key, call in self._calls.items() if key in current or call.task is not None}
        for key, one in current.items():
            # What was called before this process knew of it may have been taken.
            call = self._calls.setdefault(key, _Call(one, CallState(unsure=one.address is not None)))
            call.follow(one)
            if call.task is None and (work := self._next(call, now)) is not None:
                call.task = asyncio.create_task(self._do(call, work), name=f"executor call for job {one.job_id}")

    def _next(self, call: _Call, now: float) -> Callable[[], Awaitable[None]] | None:
        """What is to be done for an attempt now."""
        one = call.attempt
        heard = one.heard_at, one.called_at
        if rules.is_silent(heard, self._database.now(), now - self._listening_since, self._timings.dead):
            silent = rules.lost(str(one.address), f"has sent nothing for {self._timings.dead:g} s")
            return partial(self._end, call, silent)
        if one.cancel_reason is not None and not call.cancelled:
            return partial(self._cancel, call, one.cancel_reason)
        if now < call.next_at:
            return None
        if one.state == DISPATCHED and not call.taken:
            return partial(self._call, call)
        reason = one.cancel_reason
        return partial(self._probe, call) if reason is None else partial(self._cancel, call, reason)

    async def _do(self, call: _Call, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (RetryableError, ConflictError) as error:
            log.debug("executor call for job %s deferred: %s", call.attempt.job_id, error)
            call.next_at = clock.monotonic() + POLL_INTERVAL_S
        finally:
            call.task = None
            if call.moves and call.next_at <= clock.monotonic():  # the next executor need not wait for a poll
                self._wake.set()

    async def _call(self, call: _Call) -> None:
        one = call.attempt
        urls = await self._callbacks()
        given = await self._database.run(lambda tx: self._give(tx, call))
        if given is None or given.address is None:
            return
        crash.point("jobs.call.before_call")
        result = await self._run(given, urls, again=call.state.unsure or call.state.calls > 0)
        crash.point("jobs.call.after_answer")
        step, unsure = rules.next_step(str(given.routing), call.state, result.answer), call.state.unsure
        call.state = call.state.called(result.answer)
        if step is Next.END:
            refused = result.answer is CallAnswer.REFUSED
            ending = rules.refused(given.address, result.detail) if refused else self._unreached(given, result)
            await self._end(call, ending)
        elif step is Next.FOLLOW:
            call.taken, call.next_at = True, clock.monotonic() + self._timings.probe
            self._heard.add(one.history_id)
            if unsure:  # it may have reported already, and another owner was notified
                await self._consume(one.job_id, one.owner_epoch)
        else:
            self._repeat(call, given.address, step, result.answer)

    @staticmethod
    def _unreached(given: JobRow, result: CallResult) -> AttemptEnding:
        return rules.not_reached([str(given.address)], result.detail)

    @staticmethod
    def _repeat(call: _Call, address: str, step: Next, answer: CallAnswer) -> None:
        call.moves = step is Next.OTHER
        if call.moves:
            call.tried.append(address)
            call.busy = call.busy or answer is CallAnswer.BUSY
        pause = 0.0 if answer is CallAnswer.NOT_REACHED and call.moves else rules.pause_s(call.state.calls)
        call.next_at = clock.monotonic() + pause

    async def _run(self, job: JobRow, urls: Sequence[str], *, again: bool) -> CallResult:
        key, history_id = await installation.report_key(self._database), str(job.history_id)
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
            token=attempt_token(key, history_id),
            traceparent=traceparent,
            tracestate=tracestate,
            shard_index=job.shard_index,
            shard_total=job.shard_total,
        )
        result = await self._client.run(run)
        call_spans.end_run(span, result)
        return result

    async def _give(self, tx: Transaction, call: _Call) -> JobRow | None:
        """The job with its payload, whose address is stored; None where no executor is to be called."""
        found = await executor_jobs.lock_own(tx, self._node, call.attempt)
        if found is None:
            return None
        job = routed(found)
        if job.address is None or call.moves:
            picked = await self._picked(tx, job, call)
            if not isinstance(picked, str):
                if picked is not None:
                    await self._store_end(tx, job, picked)
                return None
            given = rules.called(job, picked, self._database.now())
            await executor_jobs.give(tx, job, given)
            call.state, call.moves, job = replace(call.state, unsure=False), False, given
        source = job.parent_id or job.id
        return replace(job, payload=(await jobs.payloads(tx, [source])).get(source))

    async def _picked(self, tx: Transaction, job: JobRow, call: _Call) -> str | AttemptEnding | None:
        """The address to call; how the attempt ends where there is none, None where it is to be tried again later."""
        try:
            addresses = await self._pick(tx, job)
        except (NoExecutors, UnknownExecutor) as error:
            return rules.no_executors(str(error))
        except NotFound:
            return rules.no_group(str(job.executor_group))
        if job.routing != Strategy.FAILOVER:
            return addresses[0]
        found = rules.candidate(addresses, call.tried)
        if found is not None or not call.busy:
            return found or rules.not_reached(call.tried, "none could be reached")
        call.tried, call.busy = [], False
        call.next_at = clock.monotonic() + rules.pause_s(call.state.calls)
        return None

    async def _probe(self, call: _Call) -> None:
        """Asks the executor whether it has the attempt: one that was restarted does not."""
        one = call.attempt
        call.next_at = clock.monotonic() + self._timings.probe
        async with self._database.read() as connection:
            job = await jobs.get(connection, one.job_id)
        if job is None or one.address is None:
            return
        span = call_spans.begin_probe(job, one.address)
        has = await self._client.has(one.address, str(job.executor_group), one.history_id)
        if has is False:
            call_spans.end_denied(span)
        if has:
            self._heard.add(one.history_id)
            await self._consume(one.job_id, one.owner_epoch)
        elif has is False and call.denied:
            await self._end(call, rules.lost(one.address, "does not have this attempt: it was restarted"))
        elif has is False:
            call.next_at = clock.monotonic() + DENIAL_INTERVAL_S
        call.denied = has is False

    async def _cancel(self, call: _Call, reason: str) -> None:
        """Asks it to stop, and whether it still has the attempt: one that was restarted takes the request, too."""
        again, call.cancelled = call.cancelled, True
        await self._stop_run(call.attempt, reason, again=again)
        await self._probe(call)
        call.next_at = min(call.next_at, clock.monotonic() + CANCEL_INTERVAL_S)

    async def _stop_run(self, one: OwnedAttempt, reason: str, *, again: bool = False) -> None:
        async with self._database.read() as connection:
            job = await jobs.get(connection, one.job_id)
        if job is not None and one.address is not None:
            await call_spans.cancel(self._client, job, one.address, one.history_id, reason, again=again)

    async def _note_heard(self) -> None:
        """Notes all signs of life since the last poll."""
        noted, self._heard = self._heard, set()
        if not noted:
            return
        now = self._database.now()
        try:
            await self._database.run(lambda tx: executor_jobs.heard(tx, sorted(noted), now))
        except BaseException:
            self._heard |= noted
            raise

    async def _end(self, call: _Call, ending: AttemptEnding) -> None:
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
