"""Database checks: does the database take a write, and is its clock right?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrix.cli.finding import FAIL, OK, WARN, Finding
from orchestrix.errors import OrchestrixError

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database

NAME: Final = "orchestrix-doctor"


async def writes(database: Database, url: str) -> Finding:
    """Whether a row can be written; `url` is how the database is shown."""
    from orchestrix import clock
    from orchestrix.persistence import write_probes

    try:
        await write_probes.try_once(database, f"{NAME}-{clock.token()}")
    except OrchestrixError as refused:
        fix = "let it, this user and this session write; nodes go on by themselves then"
        return Finding(FAIL, "database", f"{url}: {refused}", fix)
    return Finding(OK, "database", url)


async def clock_of(database: Database) -> list[Finding]:
    """Whether it was set back."""
    from orchestrix.persistence import set_back

    async with database.read() as connection:
        ahead = await set_back.ahead_s(connection)
    if not ahead:
        return []
    said = f"the clock went back: the newest stored time lies {ahead:.0f} s ahead of the clock of the database"
    return [Finding(WARN, "clock", said, "set the clock right; waits are counted by it as it is, and nothing is lost")]
