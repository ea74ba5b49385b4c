"""Database checks: whether the database takes a write, and whether its clock is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrix.cli.doctor.result import FAIL, OK, WARN, CheckResult
from orchestrix.errors import Contention, OrchestrixError
from orchestrix.quantities import duration

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database

_CROWDED: Final = ("too many clients", "connection slots are reserved", "too many connections", "max_user_connections")
"""What PostgreSQL and MariaDB say when they take no more connections."""
_POOL_EMPTY: Final = "no database connection became free"
"""What a process says whose own connections are all in use."""
NAME: Final = "orchestrix-doctor"


async def writes(database: Database, url: str) -> CheckResult:
    """Whether a row can be written; `url` is how the database is shown."""
    from orchestrix import clock
    from orchestrix.persistence.cluster import write_probes

    try:
        await write_probes.try_once(database, f"{NAME}-{clock.token()}")
    except OrchestrixError as refused:
        fix = fix_for(refused) or _nodes_go_on("let it, this user and this session write")
        return CheckResult(FAIL, "database", f"{url}: {refused}", fix)
    return CheckResult(OK, "database", url)


def fix_for(refused: OrchestrixError) -> str | None:
    """What helps against it, where that is known."""
    from orchestrix.persistence.dialects.port import FULL, LOCKED

    text = str(refused)
    if text == FULL:
        return _nodes_go_on("free space on its disk")
    if text == LOCKED or isinstance(refused, Contention):
        return _nodes_go_on("end the program or the transaction that holds the lock")
    return fix_for_connections(text)


def fix_for_connections(text: str) -> str | None:
    """What helps if `text` says that there was no connection left, at the database or in a node's pool."""
    if any(sign in text.lower() for sign in _CROWDED):
        less = "give it more (max_connections), or each process fewer: ORCHESTRIX_DATABASE__POOL_SIZE"
        return _nodes_go_on(f"end clients that hold connections for nothing, {less}")
    if _POOL_EMPTY in text:
        return _nodes_go_on("end slow statements and locks in the database, or raise ORCHESTRIX_DATABASE__POOL_SIZE")
    return None


def _nodes_go_on(fix: str) -> str:
    return f"{fix}; nodes go on by themselves then"


async def clock_of(database: Database) -> list[CheckResult]:
    """Whether it was set back."""
    from orchestrix.persistence import clock_rollback

    async with database.read() as connection:
        ahead = await clock_rollback.ahead_s(connection)
    if not ahead:
        return []
    by = duration(ahead)
    text = f"the clock went back: the newest stored time lies {by} ahead of the clock of the database"
    fix = f"set the clock right, or if it is right now do nothing: no wait is lost, and this ends within {by}"
    return [CheckResult(WARN, "clock", text, fix)]


async def copy_of(database: Database) -> list[CheckResult]:
    """Whether the row that names the installation is there, and no `clone-reset` has stopped half-way."""
    from orchestrix.errors import SchemaMismatch
    from orchestrix.persistence.cluster import installation

    try:
        async with database.read() as connection:
            await installation.read(connection)
    except SchemaMismatch as wrong:
        return [CheckResult(FAIL, "installation", str(wrong), "orchestrix db clone-reset")]
    return []
