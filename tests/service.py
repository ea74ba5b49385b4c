"""The service's handlers with settings of a test's own, for workers and for calls without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from orchestrix import Command, Context
from orchestrix.worker.handlers import Handler, HandlerTable
from workers import app_registration, git_repo

SAGAS: Final = ("sagas.app_provisioning",)
WORKERS: Final = ("workers",)
RESOURCES: Final = ("app.apps",)
SERVICE: Final[Mapping[str, tuple[str, ...]]] = {"sagas": SAGAS, "workers": WORKERS, "resources": RESOURCES}
"""The settings that `orchestrix.toml` has, for processes that read no file."""

CREATE: Final = "cmd.createGitRepo"
DELETE: Final = "cmd.deleteGitRepo"
REGISTER: Final = "cmd.registerApp"
UNREGISTER: Final = "cmd.unregisterApp"


def git_handlers(root: Path | str = "", provider: str = "local") -> HandlerTable:
    """Those of git repositories in `root`, which is made."""
    if provider == "local":
        Path(root).mkdir(parents=True, exist_ok=True)
    settings = git_repo.GitSettings.model_validate({"root": str(root), "provider": provider})
    return HandlerTable([(CREATE, bound(git_repo.create, settings)), (DELETE, bound(git_repo.delete, settings))])


def registration_handlers(provider: str = "database") -> HandlerTable:
    """Those of executor groups; the database is that of the worker."""
    settings = app_registration.RegistrationSettings.model_validate({"provider": provider})
    both = ((REGISTER, app_registration.register), (UNREGISTER, app_registration.unregister))
    return HandlerTable([(command, bound(handler, settings)) for command, handler in both])


def bound(handler: Any, settings: BaseModel) -> Handler:
    """`handler` with these settings in its context, whoever calls it."""

    async def call(context: Context, command: Command) -> Mapping[str, Any] | None:
        answer: Mapping[str, Any] | None = await handler(replace(context, settings=settings), command)
        return answer

    return call
