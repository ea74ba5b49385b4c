"""Group control: what people set of executor groups and of single executors, with its audit rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.errors import NotFound
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.groups import ExecutorGroup
from orchestrix.persistence.registry.registrations import Executor

SET: Final = "set-group"
DELETE: Final = "delete-group"
DRAIN: Final = "drain-executor"
UNDRAIN: Final = "undrain-executor"
"""The verbs in the audit."""


@dataclass(frozen=True, slots=True)
class By:
    """Who asks, and why."""

    actor: str
    reason: str


class GroupControl:
    """Sets and deletes groups, and drains executors. What changes nothing leaves no audit row."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, app: str, addresses: Sequence[str] | None, by: By) -> tuple[ExecutorGroup, bool]:
        """Makes the group MANUAL with these addresses, or AUTO without any; the group, and whether it is new.

        Raises `Unavailable`.
        """

        async def work(tx: Transaction) -> tuple[ExecutorGroup, bool]:
            before = await groups.lock(tx, app)
            group, made = await groups.set_addresses(tx, app, addresses, tx.now())
            if before is None or (before.address_type, before.addresses) != (group.address_type, group.addresses):
                await _note(tx, SET, by, {"app": app, "addresses": None if addresses is None else list(addresses)})
            return group, made

        done = await self._database.run(work)
        if done[1]:  # who was just registering has not seen the group
            await self._database.run(lambda tx: groups.refresh(tx, [app], tx.now()))
        return done

    async def delete(self, app: str, by: By) -> None:
        """Deletes the group; registrations stay. Raises `NotFound` and `Unavailable`."""

        async def work(tx: Transaction) -> None:
            if not await groups.delete_group(tx, app):
                raise NotFound(f"{app!r} has no executor group")
            await _note(tx, DELETE, by, {"app": app})

        await self._database.run(work)

    async def drain(self, executor: Executor, by: By, *, drained: bool = True) -> None:
        """Excludes a registered executor from new jobs, or includes it again. Another process at its address is
        included. Raises `NotFound` and `Unavailable`.
        """

        async def work(tx: Transaction) -> None:
            found = (await registrations.among(tx, [executor])).get(executor)
            if found is None:
                raise NotFound(f"{executor[0]!r} has no executor at {executor[1]}")
            if (found.drained_at is not None) is drained:
                return
            await registrations.set_drained(tx, [executor], tx.now() if drained else None)
            await groups.refresh(tx, [executor[0]], tx.now())
            verb = DRAIN if drained else UNDRAIN
            await _note(tx, verb, by, {"app": executor[0], "address": executor[1]})

        await self._database.run(work)


async def _note(tx: Transaction, verb: str, by: By, detail: Mapping[str, Any]) -> None:
    await audit.insert(tx, [AuditRow(at=tx.now(), actor=by.actor, verb=verb, reason=by.reason, detail=detail)])
