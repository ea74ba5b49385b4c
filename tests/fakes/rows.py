"""What does a database answer the state guard that holds the rows that a test put there?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from orchestrix import clock
from orchestrix.errors import Unavailable
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.saga.state import DEADLINE, Instance

NOW = datetime(2026, 1, 1, tzinfo=UTC)

APP = Instance(
    id=1,
    saga="app",
    key="shop",
    created_by="ann",
    state="APP_INITIATED",
    version=1,
    correlation_id="c-1",
    command_id="m-1",
    attempt=1,
    wake_at=NOW,
    wake_reason=DEADLINE,
    wait_ms=60_000,
    blocker=None,
    data={},
    definition_version=1,
    created_at=NOW,
    updated_at=NOW,
)


class Rows:
    """Stands in for the database and for `persistence.instances.guard`: `looks` are the ids of each select."""

    def __init__(self) -> None:
        self.rows: dict[int, Instance] = {}
        self.looks: list[list[int]] = []
        self.error: Exception | None = None
        self.mute: Exception | None = None
        self.suspects: dict[str, RedeliveryRecord] = {}

    def put(self, app_id: int, **changes: Any) -> None:
        """A row that waits for command `m-{app_id}`; `changes` are fields of `Instance`."""
        fresh = replace(APP, id=app_id, key=f"app {app_id}", command_id=f"m-{app_id}", correlation_id=f"c-{app_id}")
        self.rows[app_id] = replace(fresh, **changes)

    def now(self) -> datetime:
        """The database's clock, by which every one of these rows is due."""
        return clock.now()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Rows]:
        """Raises `error` if there is one."""
        if self.error is not None:
            raise self.error
        yield self

    async def execute(self, query: object) -> None:
        """There is nothing but what `guard` reads."""
        raise Unavailable("these rows take no questions")

    async def run(self, work: Callable[[Rows], Awaitable[None]]) -> None:
        """Nothing can be written here but notes of suspects. Raises `mute` if there is one."""
        if self.mute is not None:
            raise self.mute
        await work(self)

    async def note(self, tx: object, suspect: RedeliveryRecord) -> None:
        """Stands in for `persistence.suspects.put`."""
        self.suspects[suspect.command_id] = suspect

    async def noted(self, connection: object, command_id: str) -> RedeliveryRecord | None:
        """Stands in for `persistence.suspects.of_command`."""
        return self.suspects.get(command_id)

    async def guard(self, connection: object, pair: object, ids: Iterable[int]) -> dict[int, Instance]:
        """The rows with these ids."""
        self.looks.append(list(ids))
        return {one: self.rows[one] for one in self.looks[-1] if one in self.rows}
