"""Who registers an app, so that its executors have a group to join?"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from app.config import RegistrationSettings
from app.persistence.engine import Database
from app.persistence.groups import insert_if_absent
from sagas.engine.messages import Command

from .sdk.context import Context
from .sdk.errors import Permanent
from .sdk.handlers import HandlerTable
from .simulated import do_nothing, simulate

REGISTER: Final = "cmd.registerApp"


def handlers(settings: RegistrationSettings, database: Database) -> HandlerTable:
    """What does `cmd.registerApp`."""
    if settings.provider == "simulated":
        return HandlerTable([(REGISTER, simulate)])
    if settings.provider == "none":
        return HandlerTable([(REGISTER, do_nothing)])
    return HandlerTable([(REGISTER, partial(register, database))])


async def register(database: Database, context: Context, command: Command) -> dict[str, Any]:
    """Inserts the app's executor group, unless this step has done so before.

    Raises `Permanent` if somebody else made a group of that name, and `Unavailable` if the database is away.
    """
    name, key = context.app_name, context.idempotency_key
    group = await database.run(lambda tx: insert_if_absent(tx, name, key, database.now()))
    if group.marker != context.idempotency_key:
        raise Permanent("ForeignGroup", f"an executor group named {context.app_name!r} is there already")
    return {"executorGroup": group.app_name}
