"""Redelivery scheduler: retries commands whose workers died, at little cost to the others if one kills its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from orchestrix import clock
from orchestrix.broker.port import Broker
from orchestrix.errors import Unavailable
from orchestrix.persistence.sagas.redelivered_commands import SET_ASIDE_PREFIX
from orchestrix.quantities import counted
from orchestrix.telemetry import log_events
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.delivery import LAST_TRY_DEATHS, CommandDelivery
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.prefetch import PrefetchWindow
from orchestrix.worker.commands.redelivery.crash_notes import TRIED_IN_ISOLATION, CrashNotes
from orchestrix.worker.commands.redelivery.policy import RedeliveryDecision, RedeliveryPolicy
from orchestrix.worker.context import LOGGER
from orchestrix.worker.delivery_spans import CHANNEL_LOST
from orchestrix.worker.error_mapping import ends_task

KEY: Final = "alone"
ISOLATION_TIMEOUT_S: Final = 30.0
"""Seconds for which a worker takes nothing new so that a command can run alone in it."""
ISOLATION_COOLDOWN_S: Final = 60.0
"""Seconds after a vain attempt in which it is not repeated; nor is it while what it waited for is in flight."""
ISOLATION_REQUEUE_DELAY_S: Final = 2.0
"""Seconds that a command which must run alone stays here meanwhile, before it is requeued."""


class CommandRunner(Protocol):
    """What the scheduler needs of the slots."""

    @property
    def free(self) -> bool:
        """Whether a slot is free."""

    def begin(self, command: CommandDelivery) -> asyncio.Task[None]:
        """Executes the command as soon as a slot is free."""

    def beside(self, command: CommandDelivery) -> set[CommandDelivery]:
        """What else is in flight, except for commands that never end."""

    async def emptied(self, command: CommandDelivery) -> None:
        """Waits until nothing else is in flight."""

    def report_worker_crashes(self, command: CommandDelivery) -> None:
        """Reports that the command kills its workers."""


class RedeliveryScheduler:
    """One `RedeliveryPolicy` per queue, and one slot for a command that must run alone in its process.

    No more of them are held than run: every command in flight when a worker dies counts one death more.
    """

    def __init__(
        self,
        in_flight: InFlightCommands,
        broker: Broker,
        window: PrefetchWindow,
        outage: Backpressure,
        crashes: CrashNotes,
        slots: int,
        last: int,
    ) -> None:
        self._in_flight, self._broker, self._window = in_flight, broker, window
        self._outage, self._crashes = outage, crashes
        self._slot_count, self._last = slots, min(LAST_TRY_DEATHS, last)
        self._policies: dict[str, RedeliveryPolicy] = {}
        self._arrived: asyncio.Queue[CommandDelivery] = asyncio.Queue()
        self._undecided: list[CommandDelivery] = []
        self._tried: dict[CommandDelivery, None] = {}
        self._isolated_task: asyncio.Task[None] | None = None
        self._waits: dict[CommandDelivery, None] = {}
        """Those that must run alone and have not started."""
        self._delayed: set[asyncio.Task[None]] = set()
        self._paused_until = 0.0
        self._blocking: set[CommandDelivery] = set()
        """Commands that never ended while one waited to run alone."""
        self._work: CommandRunner

    def use(self, work: CommandRunner) -> None:
        """Sets the runner of the commands."""
        self._work = work

    def put(self, command: CommandDelivery) -> None:
        """Adds a command; returns at once."""
        self._arrived.put_nowait(command)

    def take_waiting(self) -> list[CommandDelivery]:
        """Removes all that have arrived and not started, and returns them."""
        waiting, self._waits, self._undecided = [*self._waits, *self._undecided], {}, []
        return waiting + [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]

    async def round(self) -> None:
        """Decides about those that have arrived, the fewest worker deaths first."""
        commands = self._undecided  # in an attribute: `stop` requeues them
        if not commands:
            commands.append(await self._arrived.get())
        while not self._arrived.empty():
            commands.append(self._arrived.get_nowait())
        commands.sort(key=lambda command: command.deaths)
        while commands:
            if self._in_flight.alive(commands[0]):
                await self._decide_or_put_back(commands[0], len(commands) > 1)
            else:
                self._in_flight.forget(commands[0], CHANNEL_LOST)
            del commands[:1]

    async def stop(self) -> None:
        """Starts no more of them."""
        tasks = [*self._delayed, *([self._isolated_task] if self._isolated_task is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def observe(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """Reopens queues that were closed for lack of capacity."""
        self._follow(now)
        for queue, policy in self._policies.items():
            if policy.room(self._work.free):
                self._window.open(queue)

    def _follow(self, now: float) -> None:
        """Updates the policies with what runs."""
        for command in self._tried:
            self._policy(command).works(command.message.id, command.begun)
        for policy in self._policies.values():
            policy.watch(now)

    async def _decide_or_put_back(self, command: CommandDelivery, more: bool) -> None:
        """Requeues the command even where the worker itself fails."""
        task = asyncio.current_task()
        try:
            await self._decide(command, more)
        except BaseException as error:
            if ends_task(error, task):
                raise
            self._undecided.remove(command)
            await self._in_flight.reject([command])
            if isinstance(error, Exception):
                raise
            raise RuntimeError("a redelivered command could not be scheduled") from error

    async def _decide(self, command: CommandDelivery, more: bool) -> None:
        if self._in_flight.stopping.is_set():
            await self._in_flight.requeue([command])
        elif command.isolated and command.redelivered and await self._crashes.started_in_isolation(command):
            await self._crashes.note(command, "it crashed a worker that ran nothing else")
            self._work.report_worker_crashes(command)
        elif command.isolated and command.redelivered:
            await self._set_aside(
                command,
                f"{SET_ASIDE_PREFIX} to be tried alone: its last worker died before it started it",
                isolated=True,
            )
        elif command.isolated:
            await self._wait_for_isolation(command)
        elif command.deaths >= self._last:
            await self._set_aside(command, f"{SET_ASIDE_PREFIX} to be tried alone", isolated=True)
        else:
            await self._assign(command, more)

    async def _assign(self, command: CommandDelivery, more: bool) -> None:
        queue, policy, id = command.deliveries[0].queue, self._policy(command), command.message.id
        others = not policy.knows_round(id) and (more or await self._has_more(queue))
        self._follow(clock.monotonic())
        place = policy.arrives(id, command.deaths, others, self._work.free)
        if place is RedeliveryDecision.RUN:
            beside = (
                "no other redelivered command"
                if policy.width == 1
                else f"at most {policy.width - 1} others so often redelivered"
            )
            await self._crashes.note(command, f"{beside} may run beside it")
            self._tried[command] = None
            self._work.begin(command).add_done_callback(lambda task: self._left(command))
            return
        if place is RedeliveryDecision.FULL:
            self._window.close(queue)
        await self._set_aside(command, f"{SET_ASIDE_PREFIX} behind commands with fewer worker deaths")

    def _policy(self, command: CommandDelivery) -> RedeliveryPolicy:
        return self._policies.setdefault(command.deliveries[0].queue, RedeliveryPolicy(self._slot_count))

    def _left(self, command: CommandDelivery) -> None:
        self._tried.pop(command, None)
        self._policy(command).leaves(command.message.id)
        self.observe((), clock.monotonic())

    async def _has_more(self, queue: str) -> bool:
        try:
            count = await self._broker.message_count(queue)
        except Unavailable:
            return False
        return count is not None and count[0] > 0

    async def _set_aside(self, command: CommandDelivery, reason: str, *, isolated: bool = False) -> None:
        await self._crashes.note(command, reason)
        died = counted(command.deaths, "worker")
        extra = command.log_fields(log_events.WORKERS_DIED)
        LOGGER.warning("%s died while processing %s; %s", died, command.message.type, reason, extra=extra)
        await self._in_flight.set_aside([command], isolated=isolated)

    async def _wait_for_isolation(self, command: CommandDelivery) -> None:
        """Only one waits for that at a time: one that waits while another runs would be suspected of its crash."""
        if self._isolated_task is not None and not self._isolated_task.done():
            return await self._in_flight.set_aside([command], isolated=True)
        if clock.monotonic() < self._paused_until or self._blocking & self._work.beside(command):
            return self._requeue_later(command)
        died = counted(command.deaths, "worker")
        await self._outage.note(KEY, f"trying {command.message.type} alone: {died} died while processing it")
        self._waits[command] = None
        self._isolated_task = asyncio.create_task(self._run_isolated(command), name="command tried alone")
        return None

    async def _run_isolated(self, command: CommandDelivery) -> None:
        try:
            if not await self._emptied(command):
                await self._leave_to_others(command, f"{SET_ASIDE_PREFIX} for a worker that runs nothing else")
            elif not await self._crashes.note(command, TRIED_IN_ISOLATION):
                await self._leave_to_others(
                    command, f"{SET_ASIDE_PREFIX} to be tried alone: the database could not record it"
                )
            else:
                self._waits.pop(command, None)
                await asyncio.shield(self._work.begin(command))
        finally:
            await self._outage.over(KEY)

    async def _emptied(self, command: CommandDelivery) -> bool:
        try:
            async with asyncio.timeout(ISOLATION_TIMEOUT_S):
                await self._work.emptied(command)
        except TimeoutError:
            return False
        return True

    async def _leave_to_others(self, command: CommandDelivery, reason: str) -> None:
        """Leaves it to a less busy worker: here it would block all others for as long as the running ones last."""
        self._paused_until = clock.monotonic() + ISOLATION_COOLDOWN_S
        self._blocking = self._work.beside(command)
        await self._set_aside(command, reason, isolated=True)
        self._waits.pop(command, None)

    def _requeue_later(self, command: CommandDelivery) -> None:
        """Requeues it after a delay: otherwise it might be redelivered here at once."""
        self._waits[command] = None
        task = asyncio.create_task(self._put_back(command), name="requeue of a command")
        self._delayed.add(task)
        task.add_done_callback(self._delayed.discard)

    async def _put_back(self, command: CommandDelivery) -> None:
        await asyncio.sleep(ISOLATION_REQUEUE_DELAY_S)
        await self._crashes.note(command, f"{SET_ASIDE_PREFIX} for a worker that runs nothing else")
        await self._in_flight.set_aside([command], isolated=True)
        self._waits.pop(command, None)
