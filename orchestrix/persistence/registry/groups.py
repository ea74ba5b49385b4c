"""Executor groups: the group of executors of each app, and the addresses that jobs are routed to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, delete, select, update

from orchestrix.errors import Contention
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.registry import registrations
from orchestrix.persistence.registry.registrations import RegisteredExecutor
from orchestrix.persistence.tables import job_group

AUTO: Final = 0
"""The addresses are those of the registered executors."""
MANUAL: Final = 1
"""The addresses are those that a person has set; heartbeats do not touch them."""
_SEPARATOR: Final = ","


@dataclass(frozen=True, slots=True)
class ExecutorGroup:
    """The executors of one app. `marker` names the saga step that made the group; None if a person did.

    `turn` is the number of the next pick in rotation.
    """

    id: int
    app_name: str
    address_type: int
    address_list: str
    marker: str | None
    created_at: datetime
    updated_at: datetime
    turn: int = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses, in their order."""
        return addresses_of(self.address_list)


def addresses_of(address_list: str) -> tuple[str, ...]:
    """The addresses of a stored list, in their order."""
    return tuple(address_list.split(_SEPARATOR)) if address_list else ()


async def insert_if_absent(tx: Transaction, app_name: str, marker: str | None, now: datetime) -> ExecutorGroup:
    """The app's group as it is now: new and AUTO with `marker`, or the one that was there with the marker that it has.

    Raises `Contention` if that one was deleted meanwhile.
    """
    group, _made = await _insert(tx, app_name, marker, now, None)
    return group


async def set_addresses(
    tx: Transaction, app_name: str, addresses: Sequence[str] | None, now: datetime
) -> tuple[ExecutorGroup, bool]:
    """Makes the group MANUAL with these addresses, or AUTO without; the group, and whether it is new."""
    group, made = await _insert(tx, app_name, None, now, addresses)
    if made:
        return group, True
    text = group.address_list if addresses is None else _SEPARATOR.join(addresses)
    wanted = (AUTO if addresses is None else MANUAL, text)
    if (group.address_type, group.address_list) != wanted:
        values = {"address_type": wanted[0], "address_list": text, "updated_at": now}
        await tx.execute(update(job_group).where(job_group.c.id == group.id).values(values))
    if addresses is None:
        await refresh(tx, [app_name], now)
    return (await get(tx, app_name)) or group, False


async def refresh(tx: Transaction, apps: Collection[str], now: datetime) -> list[str]:
    """Sets the address lists of these apps' AUTO groups to the executors that take jobs; the apps whose list changed.

    Locks the groups first, so that of two transactions the later one sees what the earlier one has registered.
    """
    if not apps:
        return []
    table = job_group.c
    query = _query().where(tx.dialect.among(table.app_name, sorted(apps)), table.address_type == AUTO)
    locked = [ExecutorGroup(*row) for row in await tx.execute(query.order_by(table.app_name).with_for_update())]
    if not locked:
        return []
    lists = address_lists(await registrations.of_apps(tx, [group.app_name for group in locked]))
    changed = [group for group in locked if group.address_list != lists.get(group.app_name, "")]
    for group in changed:
        values = {"address_list": lists.get(group.app_name, ""), "updated_at": now}
        await tx.execute(update(job_group).where(table.id == group.id).values(values))
    return [group.app_name for group in changed]


async def outdated(connection: Connection, found: Iterable[RegisteredExecutor]) -> list[str]:
    """The apps whose AUTO group has not the addresses of its executors, of all that are registered."""
    groups = [group for group in await listed(connection) if group.address_type == AUTO]
    lists = address_lists(found)
    return [group.app_name for group in groups if group.address_list != lists.get(group.app_name, "")]


def address_lists(found: Iterable[RegisteredExecutor]) -> dict[str, str]:
    """The address list of each app, of registrations that are ordered by the time of registration."""
    lists: dict[str, list[str]] = {}
    for one in found:
        if one.takes_jobs:
            lists.setdefault(one.app, []).append(one.address)
    return {app: _SEPARATOR.join(addresses) for app, addresses in lists.items()}


async def take_turns(tx: Transaction, app_name: str, count: int) -> None:
    """Moves the turn of a group that this transaction has locked."""
    table = job_group.c
    await tx.execute(update(job_group).where(table.app_name == app_name).values(turn=table.turn + count))


async def delete_group(tx: Transaction, app_name: str) -> bool:
    """Deletes the app's group, whoever made it; whether there was one. Registrations stay."""
    return (await tx.execute(delete(job_group).where(job_group.c.app_name == app_name))).rowcount > 0


async def delete_marked(tx: Transaction, app_name: str, marker: str) -> bool:
    """Deletes the app's group if it has that marker; whether it did."""
    table = job_group.c
    found = await tx.execute(delete(job_group).where(table.app_name == app_name, table.marker == marker))
    return found.rowcount > 0


async def get(connection: Connection, app_name: str) -> ExecutorGroup | None:
    """The group of an app."""
    row = (await connection.execute(_query().where(job_group.c.app_name == app_name))).first()
    return ExecutorGroup(*row) if row else None


async def known(connection: Connection, app_names: Collection[str]) -> set[str]:
    """Which of these apps have a group."""
    query = select(job_group.c.app_name).where(connection.dialect.among(job_group.c.app_name, sorted(app_names)))
    return {str(name) for name in (await connection.execute(query)).scalars()} if app_names else set()


async def lock(tx: Transaction, app_name: str) -> ExecutorGroup | None:
    """The group of an app, locked until this transaction ends."""
    row = (await tx.execute(_query().where(job_group.c.app_name == app_name).with_for_update())).first()
    return ExecutorGroup(*row) if row else None


async def listed(connection: Connection) -> list[ExecutorGroup]:
    """All groups, by app."""
    return [ExecutorGroup(*row) for row in await connection.execute(_query().order_by(job_group.c.app_name))]


async def _insert(
    tx: Transaction, app_name: str, marker: str | None, now: datetime, addresses: Sequence[str] | None
) -> tuple[ExecutorGroup, bool]:
    """The app's group, locked, and whether it is new: MANUAL with these addresses then, or AUTO without."""
    row = {
        "app_name": app_name,
        "address_type": AUTO if addresses is None else MANUAL,
        "address_list": _SEPARATOR.join(addresses or ()),
        "marker": marker,
        "created_at": now,
        "updated_at": now,
        "turn": 0,
    }
    made = await tx.dialect.insert_one(tx, job_group, row)
    if made and addresses is None:
        await refresh(tx, [app_name], now)
    found = await lock(tx, app_name)
    if found is None:
        raise Contention(f"the group {app_name!r} was deleted meanwhile")
    return found, made


def _query() -> Select[Any]:
    return select(*(job_group.c[name] for name in ExecutorGroup.__slots__))
