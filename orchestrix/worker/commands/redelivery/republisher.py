"""Command republisher: publishes a command again at the end of its queue, then acknowledges the old copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, Consumer, Outcome, Outgoing, Published, Topology
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.lifecycle import backoff
from orchestrix.telemetry import log_events
from orchestrix.worker.commands.delivery import DEATHS_HEADER, ISOLATED_HEADER, CommandDelivery
from orchestrix.worker.context import LOGGER

_OF_THE_BROKER: Final = ("x-death", "x-delivery-", "x-acquired-", "x-first-death-", "x-last-death-", "x-copy")
"""Headers with these prefixes are written by brokers, or apply to one copy only."""


def republished(command: CommandDelivery, *, isolated: bool = False) -> Outgoing:
    """The command again, with the number of workers that died with it in flight; `isolated` asks for a process of its
    own."""
    first = command.deliveries[0]
    headers: dict[str, str | int] = {
        name: value
        for name, value in first.headers.items()
        if isinstance(value, str | int)
        and not name.startswith(_OF_THE_BROKER)
        and name not in (DEATHS_HEADER, ISOLATED_HEADER)
    }
    headers[DEATHS_HEADER] = command.deaths
    if isolated:
        headers[ISOLATED_HEADER] = 1
    return Outgoing(
        exchange="",
        routing_key=first.queue,
        body=first.body,
        message_id=first.message_id or clock.uuid7(),
        correlation_id=first.correlation_id,
        type=first.type,
        timestamp=None if first.sent_at is None else _moment(first.sent_at),
        headers=headers,
        reply_to=first.reply_to,
    )


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):  # a foreign client's
        return None


class CommandRepublisher:
    """Publishes, waits for the confirm, and only then acknowledges: a crash in between leaves two copies.

    The state guard makes a copy harmless. A command whose channel is lost meanwhile is requeued by the broker.
    """

    def __init__(self, broker: Broker, consumer: Consumer, topology: Callable[[], Topology]) -> None:
        self._broker, self._consumer, self._topology = broker, consumer, topology

    async def put(self, commands: Sequence[CommandDelivery], *, isolated: bool = False) -> None:
        """Returns when each is confirmed and acknowledged, or its channel is lost, however long that takes."""
        left, failures = list(commands), 0
        while left := [command for command in left if any(self._consumer.alive(one) for one in command.deliveries)]:
            crash.point("worker.set_aside.before_publish")
            publishing = self._broker.publish([republished(command, isolated=isolated) for command in left])
            results = await crash.within("worker.set_aside.after_publish", publishing)
            pairs = list(zip(left, results, strict=True))
            await self._acknowledge([command for command, result in pairs if result.outcome is Outcome.CONFIRMED])
            await self._refuse([command for command, result in pairs if result.outcome is Outcome.REFUSED])
            left = [command for command, result in pairs if result.outcome in (Outcome.RETURNED, Outcome.UNKNOWN)]
            if left:
                failures += 1
                await self._repair_topology(results, failures)

    async def _acknowledge(self, commands: Sequence[CommandDelivery]) -> None:
        if commands:
            crash.point("worker.set_aside.after_confirm")
            await self._consumer.acknowledge([one for command in commands for one in command.deliveries], grow=False)

    async def _refuse(self, commands: Sequence[CommandDelivery]) -> None:
        """The broker refuses the new copy: the old copy stays."""
        if commands:
            await self._consumer.requeue([one for command in commands for one in command.deliveries])

    async def _repair_topology(self, results: Sequence[Published], failures: int) -> None:
        if any(result.outcome is Outcome.RETURNED for result in results):
            try:
                await self._broker.declare(self._topology())
            except (ConfigError, Unavailable) as error:
                LOGGER.error(
                    "the queue of a command is missing and cannot be declared: %s",
                    error,
                    extra={"event": log_events.QUEUE_MISSING},
                )
        await asyncio.sleep(backoff(failures))
