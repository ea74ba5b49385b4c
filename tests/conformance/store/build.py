"""What do rows of the store look like in a test?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from orchestrix import clock
from orchestrix.persistence.engine import Database
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.ignored_messages import IgnoredMessage
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.saga.commands import SagaTransition
from orchestrix.saga.definition import COMPLETED
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart, start
from sagas.app_provisioning import APP_PROVISIONING

PAIRS = {"apps": (APPS, "app"), "sagas": (INSTANCES, "order")}


def started(
    key: str, saga: str = "app", *, now: datetime | None = None, by: str = "ada", data: Any = None
) -> SagaTransition:
    """A saga that begins."""
    asked = SagaStart(key, by, "c-1", data or {})
    return start(replace(APP_PROVISIONING, name=saga), asked, clock.uuid7(), now or clock.now())


async def stored(database: Database, pair: SagaTables, moves: Sequence[SagaTransition]) -> list[Instance]:
    """The instances of `moves` as they are after one transaction has inserted them."""
    async with database.begin() as tx:
        ids = [id for id in await instances.insert(tx, pair, moves) if id is not None]
    async with database.read() as connection:
        found = await instances.guard(connection, pair, ids)
    return [found[id] for id in ids]


async def some(
    database: Database, count: int, pair: SagaTables = APPS, saga: str = "app", **more: Any
) -> list[Instance]:
    """`count` instances in the database, in the order of their names."""
    return await stored(database, pair, [started(f"name-{place:04}", saga, **more) for place in range(count)])


def stepped(instance: Instance, by: int = 1, **changes: Any) -> Instance:
    """The instance `by` versions later."""
    return replace(instance, version=instance.version + by, **changes)


def ended(instance: Instance, by: int = 1, state: str = COMPLETED) -> Instance:
    """The instance at its end."""
    return stepped(instance, by, state=state, command_id=None, wake_at=None, wake_reason=None, wait_ms=0)


def message(instance_id: int, version: int, n: int = 0, *, saga: str = "app", **more: Any) -> OutboxRow:
    """A row for the outbox."""
    fields: Mapping[str, Any] = {
        "id": clock.uuid7(),
        "exchange": "orchestrator.commands",
        "routing_key": "cmd.createGitRepo",
        "type": "cmd.createGitRepo",
        "correlation_id": "c-1",
        "body": b"{}",
        "timeout_ms": 60000,
        "created_at": clock.now(),
    }
    return OutboxRow(saga=saga, instance_id=instance_id, version=version, n=n, **{**fields, **more})


def note(
    instance_id: int, reason: str, *, saga: str = "app", count: int = 1, at: datetime | None = None
) -> IgnoredMessage:
    """A message that was ignored."""
    seen = at or clock.now()
    return IgnoredMessage(saga, instance_id, "ignored", "evt.gitRepoCreated", reason, count, seen, seen)
