"""App registration: makes the app's executor group, so that its executors have one to join."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from orchestrix import Command, Context, handles

from .simulated import stand_in


class RegistrationSettings(BaseModel):
    """What `cmd.registerApp` does."""

    section: ClassVar[str] = "registration"

    provider: Literal["database", "simulated", "none"] = "database"


SETTINGS = RegistrationSettings


@handles("cmd.registerApp")
async def register(context: Context, command: Command) -> dict[str, Any] | None:
    """Makes the app's executor group, unless this step has done so before.

    Raises `Permanent` if another step made a group of that name, or the saga does not wait for `command`
    any more, and `Unavailable` if the database is away.
    """
    if await stand_in(context.settings.provider):
        return None
    await context.ensure_group(context.app_name)
    return {"executorGroup": context.app_name}


@handles("cmd.unregisterApp")
async def unregister(context: Context, command: Command) -> None:
    """Deletes the app's executor group if this saga's step has made it; any other stays. Raises the same."""
    if not await stand_in(context.settings.provider):
        await context.remove_group(context.app_name)
