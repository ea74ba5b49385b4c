"""Who registers an app, so that its executors have a group to join?"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from orchestrix.config import RegistrationSettings
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.groups import Group, delete_marked, get, insert_if_absent
from orchestrix.persistence.instances import share_lock
from orchestrix.persistence.pairs import pair_of
from orchestrix.saga.effects import step_key
from orchestrix.saga.messages import Command
from orchestrix.worker.context import Context
from orchestrix.worker.errors import Permanent
from orchestrix.worker.handlers import HandlerTable

from .simulated import do_nothing, simulate

REGISTER: Final = "cmd.registerApp"
UNREGISTER: Final = "cmd.unregisterApp"
COMMANDS: Final = (REGISTER, UNREGISTER)


def handlers(settings: RegistrationSettings, database: Database) -> HandlerTable:
    """What does `cmd.registerApp`, and what undoes it."""
    if settings.provider == "simulated":
        return HandlerTable([(command, simulate) for command in COMMANDS])
    if settings.provider == "none":
        return HandlerTable([(command, do_nothing) for command in COMMANDS])
    return HandlerTable([(REGISTER, partial(register, database)), (UNREGISTER, partial(unregister, database))])


async def register(database: Database, context: Context, command: Command) -> dict[str, Any]:
    """Inserts the app's executor group, unless this step has done so before.

    Raises `Permanent` if somebody else made a group of that name, or the saga does not wait for `command` any more, and
    `Unavailable` if the database is away.
    """
    name = context.app_name

    async def work(tx: Transaction) -> Group:
        await _hold(tx, command)
        return await insert_if_absent(tx, name, context.effect_key, database.now())

    group = await database.run(work)
    if not _is_own(group.marker, context):
        raise Permanent("ForeignGroup", f"an executor group named {name!r} is there already")
    return {"executorGroup": group.app_name}


async def unregister(database: Database, context: Context, command: Command) -> None:
    """Deletes the app's executor group if this saga's step has made it; any other stays.

    Raises `Permanent` if the saga does not wait for `command` any more, and `Unavailable` if the database is away.
    """

    async def work(tx: Transaction) -> None:
        await _hold(tx, command)
        group = await get(tx, context.app_name)
        if group is not None and group.marker is not None and _is_own(group.marker, context):
            await delete_marked(tx, context.app_name, group.marker)

    await database.run(work)


def _is_own(marker: str | None, context: Context) -> bool:
    """Whether this step of this app has made what has the marker, in whichever run of its saga."""
    return marker is not None and step_key(marker) == step_key(context.effect_key)


async def _hold(tx: Transaction, command: Command) -> None:
    """Keeps the saga where `command` left it until this transaction ends, so that neither the step nor its undo can
    come into effect after the orchestrator has given out the other. Raises `Permanent` if it is elsewhere."""
    row = await share_lock(tx, pair_of(command.saga), command.app_id)
    if row is None or (row.command_id, row.state) != (command.id, command.expected_state):
        raise Permanent("Undone", "the saga has moved on meanwhile and does not wait for this command any more")
