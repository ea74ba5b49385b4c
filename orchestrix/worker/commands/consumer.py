"""Command consumer: turns deliveries into `CommandDelivery` objects for the slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from orchestrix import crash
from orchestrix.broker.port import Delivery
from orchestrix.domain.version_check import Key
from orchestrix.saga import messages
from orchestrix.saga.catalog import Catalog, MessageOwner
from orchestrix.worker.commands.admission import CommandAdmission
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.reporter import CommandReporter, dead_letter_report
from orchestrix.worker.commands.version_reader import VersionReader
from orchestrix.worker.error_mapping import ends_task

BATCH_LIMIT: Final = 500
RECEIVE_PAUSE_S: Final = 0.1
LINGER_S: Final = 0.002
LINGER_FROM_BATCH: Final = 4
"""From a batch of this size on, waiting `LINGER_S` seconds for the next one is worth it."""


class CommandConsumer:
    """Parses, joins or dead-letters each delivery of a batch, and has the new ones checked together."""

    def __init__(
        self,
        in_flight: InFlightCommands,
        catalog: Catalog,
        reporter: CommandReporter,
        admission: CommandAdmission,
        run: Callable[[CommandDelivery], None],
        versions: VersionReader,
    ) -> None:
        self._versions = versions
        self._in_flight = in_flight
        self._catalog = catalog
        self._reporter = reporter
        self._admission = admission
        self._run = run
        self._last = 0

    async def round(self) -> None:
        """Receives one batch."""
        task = asyncio.current_task()
        linger = LINGER_S if self._last >= LINGER_FROM_BATCH else 0.0
        deliveries = await self._in_flight.consumer.receive(BATCH_LIMIT, linger)
        self._last = len(deliveries)
        if not deliveries:  # the consumer is closed: nothing will come before this loop is stopped
            await asyncio.sleep(RECEIVE_PAUSE_S)
            return
        crash.point("worker.after_receive")
        commands = await self._admit_all(deliveries)
        try:
            await self._in_flight.answer()
            if self._in_flight.stopping.is_set():
                await self._in_flight.requeue(commands)
                return
            for command in await self._admission.select_runnable(commands):
                self._run(command)
        except BaseException as error:
            if ends_task(error, task):
                raise
            await self._in_flight.reject(commands)
            if isinstance(error, Exception):
                raise
            raise RuntimeError("received commands could not be processed") from error

    async def _admit_all(self, deliveries: Sequence[Delivery]) -> list[CommandDelivery]:
        """The commands that can be executed. Definition versions that are not known yet are read first."""
        read = [(one, message) for one in deliveries if (message := self._read(one)) is not None]
        unknown = {key for _, one in read if (key := self._unknown(one)) is not None}
        if unknown and not await self._versions.find(sorted(unknown)):
            await self._in_flight.consumer.requeue([one for one, _ in read])
            return []
        return [command for one, message in read if (command := self._admit(one, message)) is not None]

    def _read(self, delivery: Delivery) -> messages.Command | None:
        try:
            return messages.command(delivery.body)
        except messages.UnreadableMessage as unreadable:
            self._reporter.add(dead_letter_report(delivery, str(unreadable)))
            return None

    def _unknown(self, command: messages.Command) -> Key | None:
        """The version of the command's definition, if it is not known here."""
        version = command.definition_version
        if version is None or self._catalog.version(command.saga, version) is not None:
            return None
        return command.saga, version

    def _admit(self, delivery: Delivery, command: messages.Command) -> CommandDelivery | None:
        try:
            owner = self._owner(delivery, command)
        except messages.UnreadableMessage as unreadable:
            self._reporter.add(dead_letter_report(delivery, str(unreadable)))
            return None
        return self._in_flight.admit(command, owner, delivery)

    def _owner(self, delivery: Delivery, command: messages.Command) -> MessageOwner:
        """The step that the queue belongs to in the command's version, if the body names it too."""
        if (unknown := self._unknown(command)) is not None and self._catalog.saga(command.saga) is not None:
            raise messages.UnreadableMessage(f"unknown-version: {unknown[1]} of {unknown[0]}")
        owner = self._catalog.command(delivery.queue, command.definition_version)
        if owner is None or command.type != delivery.queue:
            raise messages.UnreadableMessage(f"wrong-type: {command.type[:100]} in {delivery.queue}")
        if command.saga != owner.saga.name:
            known = self._catalog.saga(command.saga) is not None
            raise messages.UnreadableMessage("wrong-saga" if known else "unknown-saga")
        if owner.undoes != (command.undoes_attempt is not None):
            wrong = "is missing" if owner.undoes else "is allowed only in an undo"
            raise messages.UnreadableMessage(f"undoesAttempt: {wrong}")
        return owner
