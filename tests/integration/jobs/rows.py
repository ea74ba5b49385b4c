"""How does a test say who lives and who leads, without the parts that find that out?"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, insert, update

from orchestrix.domain.leases import Fence
from orchestrix.domain.nodes import FEATURE_LEVEL
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.persistence.cluster.leases import LEADER, MAX_LEASE_S
from orchestrix.persistence.engine import Database
from orchestrix.persistence.tables import leases, nodes


async def joined(database: Database, node: str) -> None:
    """A node that lives, and was heard of just now."""
    async with database.begin() as tx:
        now = tx.now()
        row = {"id": node, "name": "node", "state": "ALIVE", "roles": "coordinator", "job_count": 0}
        row["feature_level"] = FEATURE_LEVEL
        await tx.execute(insert(nodes).values(**row, started_at=now, beat_at=now + CLOCK_TOLERANCE / 2))


async def stopped(database: Database, node: str, state: str) -> None:
    """A node that has ended."""
    async with database.begin() as tx:
        await tx.execute(update(nodes).where(nodes.c.id == node).values(state=state, ended_at=tx.now()))


async def leading(database: Database, fence: Fence, seconds: float = 3600.0) -> None:
    """A node that leads, for so long already."""
    async with database.begin() as tx:
        now = tx.now()
        await tx.execute(delete(leases))
        row = {"name": LEADER, "term": fence.term, "holder": fence.holder, "mode": "broker"}
        gained_at = now - timedelta(seconds=seconds)
        await tx.execute(
            insert(leases).values(**row, lease_until=now + timedelta(seconds=MAX_LEASE_S), gained_at=gained_at)
        )
