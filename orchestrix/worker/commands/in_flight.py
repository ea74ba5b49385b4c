"""In-flight commands: the commands that the worker holds, and how each is acknowledged or requeued."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix import clock, quantities
from orchestrix.broker.port import Consumer, Delivery
from orchestrix.saga.catalog import MessageOwner
from orchestrix.saga.messages import Command
from orchestrix.telemetry import log_events
from orchestrix.telemetry.tracing import Span
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.redelivery.republisher import CommandRepublisher
from orchestrix.worker.context import LOGGER
from orchestrix.worker.delivery_spans import (
    DUPLICATE,
    GIVEN_BACK,
    SET_ASIDE,
    UNREPORTED,
    begin_delivery,
    describe_command,
    end_ignored,
)

REPORTED_MEMORY_S: Final = 60.0
"""Seconds in which a lost channel's commands are redelivered. Later copies are new commands: they are executed."""
REPUBLISH_FROM_DEATHS: Final = 2
"""With so many worker deaths a command is not simply requeued, which most brokers would count as one more."""
REPUBLISH_TIMEOUT_S: Final = 3.0
"""Seconds that republishing may take instead, before the command is requeued all the same."""


@dataclass(slots=True)
class CommandCounts:
    """How many commands ended in which way since the worker's start."""

    done: int = 0
    """Their success event is confirmed."""
    failed: int = 0
    """Their failure event is confirmed."""
    dropped: int = 0
    """The saga had moved on."""
    older: int = 0
    """The saga's row was still behind them; the orchestrator will send them again."""
    dead: int = 0
    """They were dead-lettered."""
    joined: int = 0
    """Further copies of a command that was in flight already."""
    started: int = 0
    """Their start was reported to the orchestrator."""
    set_aside: int = 0
    """They were republished at the end of their queue, because workers had died with them in flight."""


class InFlightCommands:
    """The commands in flight by their id, and the consumer that received them. `worker_id` is for their spans."""

    def __init__(
        self,
        consumer: Consumer,
        counts: CommandCounts,
        republisher: CommandRepublisher,
        worker_id: str | None = None,
    ) -> None:
        self.consumer = consumer
        self.counts = counts
        self.stopping = asyncio.Event()
        self.retried = 0
        """How many redelivered commands were finished."""
        self._republisher = republisher
        self._worker_id = worker_id
        self._commands: dict[str, CommandDelivery] = {}
        self._reported: dict[str, float] = {}
        self._answered: list[Delivery] = []

    @property
    def commands(self) -> set[CommandDelivery]:
        """Every command in flight."""
        return set(self._commands.values())

    def admit(self, message: Command, owner: MessageOwner, delivery: Delivery) -> CommandDelivery | None:
        """A new entry; None if the command is in flight already, or was reported when its channel was lost: the
        delivery has joined it."""
        if delivery.redelivered and self._reported.pop(message.id, 0.0) > clock.monotonic():
            self._answered.append(delivery)
            self._join(message, delivery)
            return None
        if command := self._commands.get(message.id):
            command.deliveries.append(delivery)
            self._join(message, delivery)
            return None
        command = self._commands[message.id] = CommandDelivery(message, owner, clock.monotonic(), [delivery])
        command.span = self._begin_span(message, delivery, died=command.deaths > 0)
        command.worker_id = self._worker_id
        return command

    def _join(self, message: Command, delivery: Delivery) -> None:
        self.counts.joined += 1
        end_ignored(self._begin_span(message, delivery), DUPLICATE)

    def _begin_span(self, message: Command, delivery: Delivery, *, died: bool = False) -> Span:
        span = begin_delivery(delivery, died=died)
        describe_command(span, message, self._worker_id)
        return span

    def alive(self, command: CommandDelivery) -> bool:
        """Whether the broker still waits for this worker's acknowledgement: if not, others get the command."""
        return any(self.consumer.alive(delivery) for delivery in command.deliveries)

    def forget(self, command: CommandDelivery, ignored: str | None = None) -> None:
        """Removes the command: a copy that comes from now on is a new entry. `ignored` says why nothing came of it."""
        self._commands.pop(command.message.id, None)
        command.end_span(ignored)

    def abandon(self) -> None:
        """The worker ends: the spans of what it still holds end too."""
        for command in self._commands.values():
            command.end_span(UNREPORTED)

    async def answer(self) -> None:
        """Acknowledges what was redelivered after its event was confirmed."""
        answered, self._answered = self._answered, []
        if answered:
            await self.consumer.acknowledge(answered)

    async def reported(self, commands: Sequence[CommandDelivery]) -> None:
        """Notes that the events of the commands are confirmed. Where no acknowledgement can reach the broker, the
        command will be redelivered, perhaps before the orchestrator has read the event."""
        now = clock.monotonic()
        self._reported = {id: until for id, until in self._reported.items() if until > now}
        self._reported |= {
            command.message.id: now + REPORTED_MEMORY_S for command in commands if not self.alive(command)
        }
        await self.finish(commands)

    async def finish(self, commands: Iterable[CommandDelivery]) -> None:
        """Removes the commands and acknowledges every copy of them.

        A redelivered command does not raise the prefetch: its last worker may have died of it.
        """
        fresh: list[Delivery] = []
        again: list[Delivery] = []
        for command in commands:
            self.forget(command)
            if not command.acknowledged:  # its handler may end long after its slot was lost
                command.acknowledged = True
                (again if command.redelivered else fresh).extend(command.deliveries)
        if fresh:
            await self.consumer.acknowledge(fresh)
        if again:
            self.retried += 1
            await self.consumer.acknowledge(again, grow=False)

    async def requeue(self, commands: Iterable[CommandDelivery]) -> None:
        """Removes the commands and requeues them for other workers, without counting a worker death."""
        commands = list(commands)
        counted = [command for command in commands if command.deaths >= REPUBLISH_FROM_DEATHS or command.isolated]
        await self.reject(command for command in commands if command not in counted)
        if not counted:
            return
        try:
            async with asyncio.timeout(REPUBLISH_TIMEOUT_S):
                await self.set_aside(counted)
        except TimeoutError:
            LOGGER.warning(
                "cannot republish %s in time: requeueing",
                quantities.counted(len(counted), "command"),
                extra={"event": log_events.WORK_ABANDONED},
            )
            await self.reject(counted)

    async def set_aside(self, commands: Sequence[CommandDelivery], *, isolated: bool = False) -> None:
        """Removes the commands, and republishes them at the end of their queues; see `CommandRepublisher.put`."""
        for command in commands:
            self.forget(command, SET_ASIDE)  # first: its copy may be delivered here before this one is acknowledged
        self.counts.set_aside += len(commands)
        await self._republisher.put(commands, isolated=isolated)

    async def reject(self, commands: Iterable[CommandDelivery]) -> None:
        """Removes the commands and requeues them, which most brokers count as a redelivery."""
        deliveries = []
        for command in commands:
            self.forget(command, GIVEN_BACK)
            deliveries += command.deliveries
        await self.consumer.requeue(deliveries)

    async def pause(self, seconds: float) -> bool:
        """Waits; False if the worker is to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return True
        return False
