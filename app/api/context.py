"""What do the handlers need from the rest of the process?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.lifecycle import Health
from app.orchestration.requests import StartRequest, StartResult
from app.persistence.engine import Database
from sagas.engine.catalog import Catalog


class Starter(Protocol):
    """Starts sagas. A caller that goes away does not undo what it has asked for."""

    async def start(self, request: StartRequest) -> StartResult:
        """Raises `Unavailable` (nothing was written) and `OutcomeUnknown`."""


class Watch(Protocol):
    """Lets a handler sleep until a saga has moved."""

    async def changed(self, saga: str, instance_id: int, since_version: int, timeout: float) -> None:
        """Returns once the instance may have passed `since_version`, or `timeout` seconds have gone by."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that a handler may use."""

    database: Database
    catalog: Catalog
    starter: Starter
    watch: Watch
    health: Health
    version: str
