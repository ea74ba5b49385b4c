"""State guard: checks whether the saga still waits for a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.instances import guard
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga
from orchestrix.saga.messages import Command
from orchestrix.saga.state import BACKLOG, RETRY, Instance
from orchestrix.worker.commands.delivery import CommandDelivery


class StateVerdict(Enum):
    """What the row of a saga says about a command."""

    CURRENT = "current"
    """The saga waits for exactly this command: do the work."""
    MISSING = "missing"
    """There is no such instance; perhaps its row is not visible yet."""
    OLDER = "older"
    """The row is behind the command; perhaps a commit is not visible yet."""
    NEWER = "newer"
    """The saga has moved on, is held by a blocker, or waits before another try."""


def judge(saga: Saga, row: Instance | None, command: Command) -> StateVerdict:
    """What `row`, the instance that `command` names, says about it."""
    if row is None or row.saga != saga.name:
        return StateVerdict.MISSING
    if _lies_before(saga, row, command):
        return StateVerdict.OLDER
    # A compensation in flight whose saga has ended undoes a late success: its row has FAILED, and waits for nothing.
    current = (
        row.command_id == command.id
        and row.state == command.expected_state
        and row.blocker is None
        and row.wake_reason != RETRY
    )
    return StateVerdict.CURRENT if current else StateVerdict.NEWER


def _lies_before(saga: Saga, row: Instance, command: Command) -> bool:
    """Whether the row may still reach the state that sent `command`. Compensation states come after the good path."""
    if not row.live:
        return False
    if command.undoes_attempt is not None:
        return row.state in saga.path
    here, there = saga.position(row.state), saga.position(command.expected_state)
    return (here, row.attempt) < (there, command.attempt)


class StateGuard:
    """Reads the rows of many commands with one select for each pair of tables, on the primary."""

    def __init__(self, database: Database, catalog: Catalog | None = None) -> None:
        self._database = database
        self._catalog = catalog

    async def check(self, commands: Sequence[CommandDelivery]) -> list[StateVerdict]:
        """One verdict per command, in order. Raises `Unavailable`."""
        rows = await self._rows([command.message for command in commands])
        for command in commands:
            self._follow_row(command, rows.get((command.message.saga, command.message.app_id)))
        return [
            judge(command.saga, rows.get((command.message.saga, command.message.app_id)), command.message)
            for command in commands
        ]

    def _follow_row(self, command: CommandDelivery, row: Instance | None) -> None:
        """A command of a release that sent no version runs by that of its row."""
        if command.message.definition_version is None and row is not None and self._catalog is not None:
            command.owner = self._catalog.command(command.message.type, row.definition_version) or command.owner

    async def time_left(self, command: CommandDelivery) -> float:
        """The seconds until the saga's deadline, if it waits for this command still; else 0. Raises `Unavailable`.

        A wake-up that only covers the wait in the queue does not limit the time of the work once it has started.
        """
        message = command.message
        row = (await self._rows([message])).get((message.saga, message.app_id))
        if row is None or row.wake_at is None or judge(command.saga, row, message) is not StateVerdict.CURRENT:
            return 0.0
        if row.wake_reason == BACKLOG:
            return 0.0
        return max(0.0, (row.wake_at - self._database.now()).total_seconds())

    async def _rows(self, commands: Iterable[Command]) -> dict[tuple[str, int], Instance]:
        wanted: dict[SagaTables, set[int]] = {}
        for command in commands:
            wanted.setdefault(saga_tables_of(command.saga), set()).add(command.app_id)
        found: dict[tuple[str, int], Instance] = {}
        async with self._database.read() as connection:
            for pair, ids in wanted.items():
                rows = await guard(connection, pair, sorted(ids))
                found |= {(row.saga, row.id): row for row in rows.values()}
        return found
