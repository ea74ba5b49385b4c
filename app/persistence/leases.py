"""Who leads, in which term, and until when, by the database's clock?"""

from __future__ import annotations

from typing import Final

from sqlalchemy import select

from app.domain.leases import Fence
from app.errors import Deposed

from .engine import Transaction
from .tables import leases

LEADER: Final = "orchestrix:coordinator:leader"


async def check(tx: Transaction, fence: Fence) -> None:
    """The last statement before the commit of each leader write: nobody begins a newer term before it has ended.

    Raises `Deposed` if a newer term has begun, and `Contention` if somebody is about to begin one.
    """
    # FOR KEY SHARE: waits for a change of term, which locks the whole row, but not for a renewal of the lease.
    query = select(leases.c.term, leases.c.holder).where(leases.c.name == LEADER)
    found = (await tx.execute(query.with_for_update(read=True, key_share=True))).first()
    if found is None or (found.term, found.holder) != (fence.term, fence.holder):
        now = f"term {found.term} is {found.holder}'s" if found else "there is no term"
        raise Deposed(f"{fence.holder} wrote as the leader of term {fence.term}, but {now}: nothing was written")
