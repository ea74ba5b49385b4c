"""Shard runs: calls the author's functions for each shard of a member, and knows when they have really ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orchestrix import clock
from orchestrix.domain.shards.member_session import MemberSession, ShardRun
from orchestrix.lifecycle import abandon, backoff
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.shards.guarded import guarded
from orchestrix.worker.shards.log import LATE_AFTER_S, ShardRunLog

ShardFunction: TypeAlias = Callable[[int, int], Coroutine[Any, Any, object]]
"""An author's function of a shard and its epoch."""

LONGEST_BACKOFF_S: Final = 30.0
RECANCEL_INTERVAL_S: Final = 3.0
"""Seconds after which a function that was cancelled and still runs is cancelled again."""

_BY_ITSELF: Final = "raised by the function itself"

current_run: ContextVar[ShardRun | None] = ContextVar("current_run", default=None)
"""The run for which the current task works."""


@dataclass(slots=True, eq=False)
class _Work:
    """What is under way for a run: the task is one of `on_assigned` or, `revoked`, of `on_revoked`; none if the former
    has returned."""

    run: ShardRun
    task: asyncio.Task[None] | None = None
    is_revoked: bool = False
    cancelled_at: float = 0.0
    is_logged: bool = False


class ShardRuns:
    """For each run first `on_assigned`, then, once that has ended, `on_revoked`; then the run has ended.

    What they raise is logged, and they are called again, with a growing wait. `on_assigned` may return while the shard
    is still the member's. The work of a run begins no step once the lease is over, nor `on_revoked` once others may
    have the shard. `changed` is called when a run has ended, `expired` when the lease was found to be over.
    """

    def __init__(
        self,
        name: str,
        session: MemberSession,
        on_assigned: ShardFunction,
        on_revoked: ShardFunction | None,
        changed: Callable[[], None],
        expired: Callable[[], None],
    ) -> None:
        self._name, self._session, self._log = name, session, ShardRunLog(name)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._changed, self._expired = changed, expired
        self._works: dict[ShardRun, _Work] = {}

    def start(self, run: ShardRun) -> None:
        """Begins the work of a run."""
        self._works[run] = work = _Work(run)
        self._create(work, self._assign(work), self._assigned)

    def stop(self, run: ShardRun) -> None:
        """Ends the work of a run, in the background."""
        work = self._works.get(run)
        if work is None:  # abandoned
            return
        if work.task is not None:
            self._cancel(work)
        else:
            self._revoke(work)

    def check(self) -> None:
        """To be called all the time: cancels again what still runs, and what must have ended by now."""
        now = clock.boottime()
        for run in self._session.stopping:
            work = self._works[run]
            if work.task is None:
                continue
            is_too_late = now >= self._session.stop_until
            if now - work.cancelled_at >= RECANCEL_INTERVAL_S and (is_too_late or not work.is_revoked):
                self._cancel(work)
            if now - run.stopping_since >= LATE_AFTER_S and not work.is_logged:
                work.is_logged = True
                self._log.late(run)
        self._log.flush()

    def abandon(self) -> None:
        """Cancels all, and waits for nothing."""
        for work in self._works.values():
            if work.task is not None:
                work.task.cancel()
                abandon(work.task)
        self._works.clear()
        self._log.flush()

    # The phases of a run.

    def _create(self, work: _Work, do: Coroutine[Any, Any, None], then: Callable[[_Work], None]) -> None:
        phase = "revoked" if work.is_revoked else "assigned"
        work.task = asyncio.create_task(do, name=f"shard {work.run.shard} {phase}")
        work.task.add_done_callback(lambda task: self._finished(work, task, then))

    def _finished(self, work: _Work, task: asyncio.Task[None], then: Callable[[_Work], None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.error("%s: internal error", self._name, exc_info=error, extra={"event": log_events.WORKER_ERROR})
        if task.cancelled() and work.is_revoked and work.run in self._works:
            self._log.interrupted(work.run)
        if self._works.get(work.run) is work:
            work.task = None
            then(work)

    def _assigned(self, work: _Work) -> None:
        if work.run.stopping is not None:
            self._revoke(work)

    def _revoke(self, work: _Work) -> None:
        if self._on_revoked is None:
            self._ended(work)
            return
        work.is_revoked, work.cancelled_at = True, clock.boottime()
        self._create(work, self._call_revoked(work, self._on_revoked), self._ended)

    def _ended(self, work: _Work) -> None:
        del self._works[work.run]
        if work.is_logged:
            self._log.ended_late(work.run)
        self._session.ended(work.run)
        self._changed()

    async def _assign(self, work: _Work) -> None:
        current_run.set(work.run)
        failures = 0
        while work.run.stopping is None:
            began_at = clock.boottime()
            try:
                await guarded(self._on_assigned(work.run.shard, work.run.epoch), lambda: self._must_stop(work))
                return
            except asyncio.CancelledError:
                if work.run.stopping is not None or _is_cancelled():
                    raise
                error: BaseException = asyncio.CancelledError(_BY_ITSELF)
            except Exception as raised:
                error = raised
            failures = 1 if clock.boottime() - began_at >= LONGEST_BACKOFF_S else failures + 1
            await self._failed(work, "on_assigned", error, failures)

    async def _call_revoked(self, work: _Work, on_revoked: ShardFunction) -> None:
        current_run.set(work.run)
        failures = 0
        while True:
            try:
                await guarded(on_revoked(work.run.shard, work.run.epoch), lambda: self._must_stop(work))
                return
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                error: BaseException = asyncio.CancelledError(_BY_ITSELF)
            except Exception as raised:
                error = raised
            failures += 1
            await self._failed(work, "on_revoked", error, failures)

    async def _failed(self, work: _Work, function: str, error: BaseException, failures: int) -> None:
        """Logs it, and waits before the next call, if there is one."""
        is_last = work.run.stopping is not None and not work.is_revoked
        wait_s = 0.0 if is_last else backoff(failures, first=0.5, max_s=LONGEST_BACKOFF_S)
        self._log.failed(work.run, function, error, wait_s)
        await asyncio.sleep(wait_s)

    # Its end.

    def _must_stop(self, work: _Work) -> bool:
        """Whether no step of it may begin; it has been cancelled then."""
        now = clock.boottime()
        if work.run.stopping is None:
            if self._session.is_leased(now):
                return False
            self._expired()
        elif now < self._session.stop_until:
            return False
        self._cancel(work)
        return True

    def _cancel(self, work: _Work) -> None:
        if work.task is not None:
            work.cancelled_at = clock.boottime()
            work.task.cancel()


def _is_cancelled() -> bool:
    """Whether the current task has been cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
