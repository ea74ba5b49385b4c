"""Shard member: takes part in a service whose shards are divided among its members, and runs the author's functions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from orchestrix import clock
from orchestrix.broker.port import Broker
from orchestrix.domain.shards.member_session import MemberSession
from orchestrix.domain.shards.state import ShardRules
from orchestrix.errors import ShardLost
from orchestrix.lifecycle import Loop
from orchestrix.worker.shards.arguments import (
    LONGEST_GRACE_S,
    LONGEST_TIMEOUT_S,
    checked_member_weight,
    checked_name,
    checked_seconds,
    checked_shard_count,
    checked_shard_function,
)
from orchestrix.worker.shards.connection import MemberSettings, connect, member_settings, queue_name_of
from orchestrix.worker.shards.link import MemberLink
from orchestrix.worker.shards.log import log_abandoned, log_changes, log_expired, log_unanswered
from orchestrix.worker.shards.rabbitmq import MemberTransport
from orchestrix.worker.shards.runs import ShardFunction, ShardRuns, current_run

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

TICK_S: Final = 0.25
"""Seconds between two checks of the lease while nothing happens."""
SUSPENDED_S: Final = 2.0
"""Seconds by which a check is late if the process stood still."""


class MemberState(StrEnum):
    """What a member is."""

    JOINING = "joining"
    """No coordinator has answered yet."""
    ACTIVE = "active"
    """It has its lease."""
    EXPIRED = "expired"
    """No coordinator has answered for so long that it runs nothing, for others may have its shards."""
    LEAVING = "leaving"
    """It gives its shards back."""
    LEFT = "left"
    """It has none any more."""


class ShardMember:
    """A member of the service `service` while its `async with` block runs; see docs/shard-members.md.

        async def work(shard: int, epoch: int) -> None:
            async for order in orders_of(shard):
                …

        async with ShardMember("orders", "worker-1", 64, on_assigned=work) as member:
            await member.wait_for_stop()

    `on_assigned(shard, epoch)` is called for each shard that the member is given, in a task of its own. It works until
    it is cancelled, or begins something and returns. When the shard is revoked it is cancelled if it still runs, then
    `on_revoked(shard, epoch)` is called, and once that has returned too, another member may have the shard. What they
    raise is logged, and they are called again, with a growing wait. The epoch of a shard rises each time that it is
    given to a process: `fenced` refuses writes under an older one.

    `worker_id` must be another one for each running process, and should be the same after a restart. The newest
    `shard_count` that any member says is that of the service. `weight` is for the allocation `minimal`; 0 gets no
    shards. After it left or fell silent its shards stay its own for `grace` seconds, so that a restart moves nothing.
    When the block is left, its shards are handed to the others while it works, and all must have ended within
    `stop_timeout` seconds.

    `broker_url` and `heartbeat_timeout`, in seconds, are those of the settings by default; the time-out must be the
    nodes' own, `ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT`. Raises ValueError for a wrong argument and `ConfigError` without
    a broker.
    """

    def __init__(
        self,
        service: str,
        worker_id: str,
        shard_count: int,
        on_assigned: ShardFunction,
        on_revoked: ShardFunction | None = None,
        *,
        weight: int = 1,
        grace: float = 0.0,
        stop_timeout: float = 30.0,
        broker_url: str | None = None,
        heartbeat_timeout: float | None = None,
    ) -> None:
        self.service: Final = checked_name("service", service)
        self.worker_id: Final = checked_name("worker_id", worker_id)
        self.instance: Final = clock.uuid7()
        """Distinguishes this process from an earlier one with the same worker id."""
        checked_shard_function("on_assigned", on_assigned)
        if on_revoked is not None:
            checked_shard_function("on_revoked", on_revoked)
        settings = member_settings(broker_url, heartbeat_timeout)
        self._name = f"member {self.worker_id} of {self.service}"
        self._stop_timeout_s = checked_seconds("stop_timeout", stop_timeout, 0.0, LONGEST_TIMEOUT_S)
        self._session = MemberSession(
            self.worker_id,
            self.instance,
            checked_shard_count(shard_count),
            ShardRules(heartbeat_timeout_s=settings.heartbeat_timeout_s),
            weight=checked_member_weight(weight),
            grace_s=checked_seconds("grace", grace, 0.0, LONGEST_GRACE_S),
        )
        self._broker = self._connect(settings)
        transport = MemberTransport(self._broker, queue_name_of(self.worker_id, self.instance))
        self._link = MemberLink(self._name, self.service, self._session, transport, self._apply)
        self._broker.on_up(lambda generation: self._link.notify())
        self._runs = ShardRuns(self._name, self._session, on_assigned, on_revoked, self._run_ended, self._check_lease)
        self._lease_check = Loop(f"{self._name} lease", self._tick)
        self._ticked_at, self._was_leased, self._is_apply_due, self._is_report_due = -1.0, False, False, False
        self._entered, self._is_leaving, self._left, self._is_unanswered_logged = False, False, False, False
        self._change = asyncio.Event()

    def _connect(self, settings: MemberSettings) -> Broker:
        return connect(settings, self._name)

    async def __aenter__(self) -> ShardMember:
        """Begins to connect and to register, and returns at once. RuntimeError the second time."""
        if self._entered:
            raise RuntimeError("a ShardMember is entered once; make another one")
        self._entered, self._ticked_at = True, clock.boottime()
        try:
            await self._broker.start()
            await self._link.start()
            await self._lease_check.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Gives its shards back, leaves and disconnects; raises nothing. See `leave`."""
        await self.leave()

    # What it is.

    @property
    def shards(self) -> Mapping[int, int]:
        """The shards that it works for now, each with its epoch; none once the lease is over."""
        return self._session.running if self._session.is_leased(clock.boottime()) else {}

    @property
    def revoking(self) -> Mapping[int, float]:
        """The shards whose work is to end and has not, each with the seconds since when."""
        now = clock.boottime()
        return {run.shard: now - run.stopping_since for run in self._session.stopping}

    @property
    def state(self) -> MemberState:
        """`joining`, `active`, `expired`, `leaving` or `left`."""
        if self._left:
            return MemberState.LEFT
        if self._is_leaving:
            return MemberState.LEAVING
        if self._session.is_leased(clock.boottime()):
            return MemberState.ACTIVE
        return MemberState.EXPIRED if self._session.answered else MemberState.JOINING

    @property
    def generation(self) -> int:
        """The number of the generation that it follows; 0 before the first."""
        return self._session.generation

    @property
    def problem(self) -> str | None:
        """Why it is not served, in a sentence: what the coordinators or the broker refuse, or the connection."""
        return self._link.problem or self._broker.problem or self._unanswered()

    def _unanswered(self) -> str | None:
        """That no coordinator answers, once that lasts."""
        session, now = self._session, clock.boottime()
        since = session.lease_until - session.rules.lease_s if session.answered else self._link.began_at
        if session.is_leased(now) or not self._entered or now - since < session.rules.heartbeat_timeout_s:
            return None
        return f"no coordinator has answered for {now - since:.0f} s: start a node with the role coordinator"

    def owns(self, shard: int, epoch: int | None = None) -> bool:
        """Whether it works for the shard now, under that epoch if one is given. For threads, which no lease ends."""
        run = self._session.runs.get(shard)
        if run is None or run.stopping is not None or (epoch is not None and epoch != run.epoch):
            return False
        return self._session.is_leased(clock.boottime())

    async def fenced(
        self,
        tx: AsyncConnection | AsyncSession,
        shard: int,
        epoch: int | None = None,
        *,
        table: str = "shard_epochs",
    ) -> None:
        """Lets the transaction write for the shard: the first statement of it. Raises `ShardLost` where a process with
        a later epoch has done so before; those that come later wait for the end of this transaction.

        `tx` is a connection or a session of SQLAlchemy on PostgreSQL, MariaDB, MySQL or SQLite, in a transaction that
        the caller commits or, after an error, rolls back. `table` has the columns `shard`, its primary key, and
        `epoch`. Without `epoch` it is the one of the function that calls, or of the tasks and threads that it made.
        With several shards, take them in ascending order.
        """
        from orchestrix.persistence.shards import fence  # loads SQLAlchemy, for those alone who use it

        await fence.check(tx, table, shard, self._epoch(shard) if epoch is None else epoch)

    def _epoch(self, shard: int) -> int:
        """Of the run that the current task belongs to, even if that is over; else of the shard's run."""
        run = current_run.get()
        if run is None or run.shard != shard:
            run = self._session.runs.get(shard)
        if run is None:
            raise ShardLost(f"shard {shard} is not this process's")
        return run.epoch

    # Waiting.

    def _check_entered(self, method: str) -> None:
        """Raises RuntimeError outside of its block, where it would wait for ever."""
        if self._entered and not self._left:
            return
        raise RuntimeError(
            f"{method}() waits for ever outside of the block: call it within `async with ShardMember(...) as member:`"
        )

    async def wait_joined(self, timeout: float | None = None) -> bool:
        """Waits until a coordinator has answered; False when `timeout` seconds have passed. Raises `ConfigError` where
        the broker refuses its queue or its messages, and RuntimeError outside of the `async with` block."""
        self._check_entered("wait_joined")
        return await self.wait_until(
            lambda member: member.state is MemberState.ACTIVE and member._link.problem is None, timeout
        )

    async def wait_until(self, condition: Callable[[ShardMember], bool], timeout: float | None = None) -> bool:
        """Waits until `condition(member)` is true, which is looked at whenever something changes; False when `timeout`
        seconds have passed. Raises as `wait_joined`, but may be called when the block is left."""
        if not self._entered:
            self._check_entered("wait_until")

        def is_over() -> bool:
            if not self._session.answered and self._link.config_error is not None:
                raise self._link.config_error
            return condition(self)

        return await self._wait(is_over, timeout)

    async def wait_for_stop(self) -> None:
        """Returns at SIGINT or SIGTERM: leave the block then. Raises as `wait_joined`."""
        self._check_entered("wait_for_stop")
        loop, stopped = asyncio.get_running_loop(), False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            self._notify()

        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, stop)
        try:
            await self.wait_until(lambda member: stopped)
        finally:
            for one in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(one)

    async def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._change.wait()
        except TimeoutError:
            return condition()
        return True

    def _notify(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    # Changes.

    def set_shard_count(self, count: int) -> None:
        """From now on the service has so many shards, for all its members. Raises ValueError."""
        self._session.report_count(checked_shard_count(count))
        self._link.notify()

    def set_weight(self, weight: int) -> None:
        """From now on it has this weight; with 0 its shards are handed to the others. Raises ValueError."""
        self._session.weight = checked_member_weight(weight)
        self._link.notify()

    def _apply(self) -> None:
        """Begins and stops what is due."""
        self._is_apply_due = False
        changes = self._session.changes(clock.boottime())
        log_changes(self._name, self._session.generation, changes)
        for run in changes.stop:
            self._runs.stop(run)
        for run in changes.start:
            self._runs.start(run)
        if self._session.has_changes:
            self._apply_soon()
        if self._is_report_due and not self._session.stopping:
            self._report()
        if not self._was_leased and self._session.is_leased(clock.boottime()):
            self._was_leased = True
        self._notify()

    def _run_ended(self) -> None:
        self._is_report_due = True
        self._apply_soon()

    def _apply_soon(self) -> None:
        if not self._is_apply_due:
            self._is_apply_due = True
            asyncio.get_running_loop().call_soon(self._apply)

    def _report(self) -> None:
        self._is_report_due = False
        self._link.notify()

    # The lease.

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_S)
        now = clock.boottime()
        stood_still = now - self._ticked_at >= TICK_S + SUSPENDED_S
        self._ticked_at = now
        self._check_lease()
        self._runs.check()
        self._log_unanswered()
        if self._is_report_due or stood_still:
            self._report()

    def _log_unanswered(self) -> None:
        """Once, from the start on; the end of a lease has a line of its own."""
        problem = None if self._session.answered or self._is_unanswered_logged else self.problem
        if problem is not None and clock.boottime() - self._link.began_at >= self._session.rules.heartbeat_timeout_s:
            self._is_unanswered_logged = True
            log_unanswered(self._name, problem)

    def _check_lease(self) -> None:
        if self._session.check_lease(clock.boottime()):
            return
        if self._was_leased:
            self._was_leased = False
            log_expired(self._name, self._session)
        if self._session.has_changes:  # also of a lease that ended while its work began
            self._apply()

    # Its end.

    async def leave(self) -> None:
        """Hands its shards to the other members while it works for them, except with `grace`, stops what is left, says
        that it leaves, and disconnects. The others get what has not ended by then after the heartbeat time-out. Done
        when the block is left; the second time it returns at once."""
        if self._is_leaving or not self._entered:
            return
        self._is_leaving = True
        until = clock.boottime() + self._stop_timeout_s
        try:
            await self._hand_off(until)
            self._session.begin_leave()
            self._apply()
            await self._wait(lambda: not self._session.runs, max(0.0, until - clock.boottime()))
            if self._session.runs:
                log_abandoned(self._name, self._session, self._stop_timeout_s)
            else:
                await self._link.leave()
        finally:
            await self._close()

    async def _hand_off(self, until: float) -> None:
        """Asks for an assignment without shards, and follows it; not for longer than a lease."""
        session = self._session
        if session.grace_s > 0 or not session.runs or not session.is_leased(clock.boottime()):
            return
        session.weight = 0
        self._link.notify()
        longest_s = max(0.0, min(session.rules.lease_s, until - clock.boottime()))
        await self._wait(lambda: not session.runs or not session.is_leased(clock.boottime()), longest_s)

    async def _close(self) -> None:
        try:
            await self._lease_check.stop()
            await self._link.stop()
        finally:
            self._runs.abandon()
            await self._broker.stop()
            self._left = True
            self._notify()
