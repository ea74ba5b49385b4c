"""Database checks: whether the database takes a write, and whether its clock is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrix.cli.doctor.result import FAIL, OK, WARN, CheckResult
from orchestrix.errors import Contention, OrchestrixError

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database

NAME: Final = "orchestrix-doctor"


async def writes(database: Database, url: str) -> CheckResult:
    """Whether a row can be written; `url` is how the database is shown."""
    from orchestrix import clock
    from orchestrix.persistence.cluster import write_probes

    try:
        await write_probes.try_once(database, f"{NAME}-{clock.token()}")
    except OrchestrixError as refused:
        return CheckResult(FAIL, "database", f"{url}: {refused}", f"{_fix(refused)}; nodes go on by themselves then")
    return CheckResult(OK, "database", url)


def _fix(refused: OrchestrixError) -> str:
    from orchestrix.persistence.dialects.port import FULL, LOCKED

    if str(refused) == FULL:
        return "free space on its disk"
    if str(refused) == LOCKED or isinstance(refused, Contention):
        return "end the program or the transaction that holds the lock"
    return "let it, this user and this session write"


async def clock_of(database: Database) -> list[CheckResult]:
    """Whether it was set back."""
    from orchestrix.persistence import clock_rollback

    async with database.read() as connection:
        ahead = await clock_rollback.ahead_s(connection)
    if not ahead:
        return []
    text = f"the clock went back: the newest stored time lies {ahead:.0f} s ahead of the clock of the database"
    return [
        CheckResult(WARN, "clock", text, "set the clock right; waits are counted by it as it is, and nothing is lost")
    ]


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
