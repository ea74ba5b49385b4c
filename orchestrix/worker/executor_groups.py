"""Executor groups: makes and removes the group of an app, in step with the saga that requests it."""

from __future__ import annotations

from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry.groups import ExecutorGroup, delete_marked, get, insert_if_absent, refresh
from orchestrix.persistence.sagas.instances import share_lock
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.effect_keys import step_key
from orchestrix.saga.messages import Command
from orchestrix.worker.errors import Permanent


class ExecutorGroups:
    """The groups in the database, each marked with the effect key of the step that has made it.

    Each change is one transaction under a share lock of the saga's row, so that neither the step nor its compensation
    can take effect after the orchestrator has sent the other. All raise `Permanent` if the saga does not wait for the
    command any more, and `Unavailable` if the database is unavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ensure(self, command: Command, marker: str, name: str) -> None:
        """Makes the group, unless this step or a person has done so. Raises `Permanent` if another step has made it."""

        async def work(tx: Transaction) -> ExecutorGroup:
            await _hold(tx, command)
            return await insert_if_absent(tx, name, marker, self._database.now())

        group = await self._database.run(work)
        if not group.addresses:  # who was just registering has not seen the group
            await self._database.run(lambda tx: refresh(tx, [name], self._database.now()))
        if group.marker is not None and not _is_own(group.marker, marker):
            raise Permanent("ForeignGroup", f"an executor group named {name!r} already exists")

    async def remove(self, command: Command, marker: str, name: str) -> None:
        """Deletes the group if this saga's step has made it; any other stays."""

        async def work(tx: Transaction) -> None:
            await _hold(tx, command)
            group = await get(tx, name)
            if group is not None and group.marker is not None and _is_own(group.marker, marker):
                await delete_marked(tx, name, group.marker)

        await self._database.run(work)


def _is_own(marker: str | None, wanted: str) -> bool:
    """Whether the marker is of this step of this saga, in whichever run."""
    return marker is not None and step_key(marker) == step_key(wanted)


async def _hold(tx: Transaction, command: Command) -> None:
    """Locks the saga in the state that sent `command` until this transaction ends. Raises `Permanent` if it has moved
    on."""
    row = await share_lock(tx, saga_tables_of(command.saga), command.app_id)
    if row is None or (row.command_id, row.state) != (command.id, command.expected_state):
        raise Permanent("Undone", "the saga moved on meanwhile and no longer waits for this command")
