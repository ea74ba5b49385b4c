"""Clone reset: makes a copy of a database an installation of its own, which does nothing for the original."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from orchestrix import clock
from orchestrix.domain.installation import Installation
from orchestrix.domain.schedules import awaiting
from orchestrix.errors import ConflictError
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.cluster import clone_rows
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import schedules
from orchestrix.persistence.sagas import instances, transitions
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables, saga_tables_of
from orchestrix.saga.actions.clone import blocked_clone
from orchestrix.saga.effect_keys import former_key, key_of_first

ROWS_PER_TRANSACTION: Final = 500
POLL_INTERVAL_S: Final = 0.5
VERB: Final = "clone-reset"
REASON: Final = "this database is a copy: the original continues the work"
_FORMER: Final = re.compile(r"(?P<saga>[^:]+):(?P<id>[0-9]+):(?P<step>[^:]+):do")


@dataclass(slots=True)
class CloneResetResult:
    """What was done: `former` is the installation that the copy was made of, `sagas` how many were held."""

    former: str = ""
    installation: str = ""
    sagas: int = 0
    jobs: int = 0
    schedules: int = 0


async def wait_until_unused(database: Database, seconds: float, report: Callable[[str], None]) -> None:
    """Returns once no process that works on this database can be alive: no heartbeat for so many `seconds`.

    A copy has the rows of the original's processes, which no process updates any more. Raises `ConflictError` if one
    is.
    """
    first = await _signs_of_use(database, seconds)
    if not first:
        return
    names = ", ".join(f"{kind} {name}" for kind, name in sorted(first)[:3])
    report(f"heartbeats in the last {seconds:g} s: {names}; waiting up to {seconds:g} s to see whether they continue")
    ends = clock.monotonic() + seconds
    while clock.monotonic() < ends and (now := await _signs_of_use(database, seconds)):
        beating = [f"{kind} {name}" for (kind, name), at in sorted(now.items()) if first.get((kind, name)) != at]
        if beating:
            raise ConflictError(
                f"{beating[0]} uses this database: stop its nodes and workers first. Reset only copies,"
                " never the original database"
            )
        await asyncio.sleep(POLL_INTERVAL_S)


async def _signs_of_use(database: Database, seconds: float) -> dict[tuple[str, str], object]:
    async with database.read() as connection:
        return dict(await clone_rows.signs(connection, seconds))


async def reset(database: Database) -> CloneResetResult:
    """Gives the database a new id, and holds what would continue in it. It can be interrupted anywhere and begun again.

    No process starts on the database before it is complete. Raises `Unavailable`.
    """
    here = await database.run(_begin)
    assert here.resetting is not None, "the reset has started"
    database.installation = here
    done = CloneResetResult(former=here.id, installation=here.resetting)
    await database.run(clone_rows.delete_processes)
    await _all(database, lambda tx: clone_rows.delete_messages(tx, ROWS_PER_TRANSACTION))
    for pair in (APPS, INSTANCES):
        done.sagas += await _all(database, lambda tx, pair=pair: _park(tx, pair))  # type: ignore[misc]
    done.jobs = await _all(database, lambda tx: clone_rows.end_jobs(tx, ROWS_PER_TRANSACTION, f"cloned: {REASON}"))
    await _all(database, lambda tx: clone_rows.disown_jobs(tx, ROWS_PER_TRANSACTION))
    done.schedules = await _all(database, _pause_schedules)
    await _mark(database, here)
    await database.run(lambda tx: _finish(tx, done))
    database.installation = None
    return done


async def _all(database: Database, batch: Callable[[Transaction], Awaitable[int]]) -> int:
    """The sum of what `batch` returns, each call in a transaction of its own, until nothing is left."""
    sum = 0
    while count := await database.run(batch):
        sum += count
    return sum


async def _begin(tx: Transaction) -> Installation:
    here = await clone_rows.begin(tx, clock.uuid7())
    await _note(tx, {"former": here.id, "installation": here.resetting, "begun": True})
    return here


async def _finish(tx: Transaction, done: CloneResetResult) -> None:
    await clone_rows.finish(tx, done.installation)
    await _note(tx, asdict(done))


async def _note(tx: Transaction, detail: dict[str, object]) -> None:
    await audit.insert(tx, [AuditRow(at=tx.now(), actor=f"db {VERB}", verb=VERB, reason=REASON, detail=detail)])


async def _park(tx: Transaction, pair: SagaTables) -> int:
    found = await instances.movable(tx, pair, ROWS_PER_TRANSACTION)
    moved = [blocked_clone(one, tx.now()) for one in found]
    changed = [(before.version, after.instance) for before, after in zip(found, moved, strict=True)]
    await transitions.write(tx, pair, changed, [(one.instance.id, change) for one in moved for change in one.history])
    return len(found)


async def _pause_schedules(tx: Transaction) -> int:
    """Their due times would come in the copy too. `schedules resume` continues one."""
    after, count = None, 0
    while page := await schedules.page(tx, ROWS_PER_TRANSACTION, after):
        after = page[-1].name
        for one in page:
            if one.paused_at is None and one.next_at is not None:
                await schedules.store(
                    tx, one, replace(awaiting(one, None), paused_at=tx.now(), version=one.version + 1)
                )
                count += 1
    return count


async def _mark(database: Database, here: Installation) -> None:
    """The executor groups are in the database: the copy has its own, whose marks are to be those of its own sagas."""
    after = 0
    while batch := await database.run(lambda tx, after=after: _mark_some(tx, here, after)):  # type: ignore[misc]
        after = batch


async def _mark_some(tx: Transaction, here: Installation, after: int) -> int | None:
    found = await clone_rows.marks(tx, after, ROWS_PER_TRANSACTION)
    marked = []
    for one in found:
        marker = await _marker(tx, here, one.marker)
        marked += [replace(one, marker=marker)] if marker != one.marker else []
    await clone_rows.mark(tx, marked)
    return found[-1].id if found else None


async def _marker(tx: Transaction, here: Installation, marker: str) -> str:
    new = here.resetting or ""
    if here.id and marker.startswith(f"{here.id}:"):
        return new + marker.removeprefix(here.id)
    former = _FORMER.fullmatch(marker)
    if former is None or marker != former_key(former["saga"], int(former["id"]), former["step"]):
        return marker
    pair, id = saga_tables_of(former["saga"]), int(former["id"])
    row = (await instances.guard(tx, pair, [id])).get(id)
    if row is None or row.saga != former["saga"]:
        return marker
    return key_of_first(replace(row, installation=new), former["step"], row.progress.run)
