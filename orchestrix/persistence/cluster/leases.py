"""Leases: who leads, in which term, and until when, by the database's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, delete, func, insert, select, update

from orchestrix.domain.leases import NOBODY, Candidacy, ElectionReason, Fence, LeaderMode, Lease, election_reason
from orchestrix.errors import StaleTermError
from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import handovers, leases

LEADER: Final = "orchestrix:coordinator:leader"
MAX_LEASE_S: Final = 600.0
"""The longest lease in seconds, for those who do not know its length."""
PLAUSIBLE_LEASE_FACTOR: Final = 2
"""A lease may have so many times its length left: more was written before the clock was set back."""
HANDOVERS_KEPT: Final = 100
"""Handovers that are kept."""
_COLUMNS: Final = ("term", "holder", "mode", "lease_until", "gained_at", "resigned_at")
_INSERT: Final = BulkInsert(leases, ("name", *_COLUMNS), key=("name",))
_MINE: Final = leases.c.name == LEADER


@dataclass(frozen=True, slots=True)
class Handover:
    """A change of leader, as the beginning of a term.

    `began_at` is when the former leader's lease ended, as far as is known; or later, when the new one had started:
    while nothing runs, no node can take over.

    `gained_at` is when the term began, `ended_at` when its leader first wrote in it; None if it never did.
    """

    term: int
    from_holder: str | None
    to_holder: str
    mode: LeaderMode
    reason: ElectionReason
    began_at: datetime
    gained_at: datetime
    ended_at: datetime | None


async def check_fence(tx: Transaction, fence: Fence) -> None:
    """The last statement before the commit of each leader write: no node begins a newer term before that commit.

    Raises `StaleTermError` if a newer term began, and `Contention` if a node is about to begin one.
    """
    # FOR KEY SHARE: waits for a change of term, which locks the whole row, but not for a renewal of the lease.
    query = select(leases.c.term, leases.c.holder).where(_MINE)
    found = (await tx.execute(query.with_for_update(read=True, key_share=True))).first()
    if found is None or (found.term, found.holder) != (fence.term, fence.holder):
        now = f"term {found.term} belongs to {found.holder}" if found else "there is no current term"
        raise StaleTermError(_refusal(fence, now))


async def read(connection: Connection, lease_s: float = MAX_LEASE_S) -> Lease | None:
    """The row as it is now; None before the first term. `lease_s` is how long a lease lasts, where that is known."""
    return _lease((await connection.execute(_query(connection))).first(), lease_s)


async def campaign(tx: Transaction, candidacy: Candidacy, lease_s: float, noticed_s: float = 0.0) -> Fence | None:
    """Begins the next term with the candidate as its holder; None if the row, as it is now, does not allow it.

    `noticed_s` is how many seconds ago the candidate saw the former leader go. Raises `Contention` while
    another transaction has locked the row.
    """
    lease = await _locked(tx, lease_s)
    reason = election_reason(candidacy, lease)
    if reason is None:
        return None
    fence = Fence(max(lease.term, await _newest(tx)) + 1, candidacy.node_id)
    values = {
        "term": fence.term,
        "holder": fence.holder,
        "mode": candidacy.mode.value,
        "lease_until": lease.now + timedelta(seconds=lease_s),
        "gained_at": lease.now,
        "resigned_at": None,
    }
    await tx.execute(update(leases).where(_MINE).values(values))
    await _record(tx, fence, lease, candidacy, reason, noticed_s)
    return fence


async def renew(tx: Transaction, fence: Fence, mode: LeaderMode, lease_s: float) -> None:
    """Renews the lease for `lease_s` seconds. Raises `StaleTermError` if a newer term began."""
    query = select(leases.c.term, tx.dialect.clock(tx.now()).label("now")).where(*_still_leads(fence))
    found = (await tx.execute(query)).first()
    until = None if found is None else found.now + timedelta(seconds=lease_s)
    await _write(tx, fence, {"mode": mode.value, "lease_until": until, "resigned_at": None} if until else None)


async def resign(tx: Transaction, fence: Fence) -> None:
    """Ends the lease now. Raises `StaleTermError` if a newer term began."""
    query = select(tx.dialect.clock(tx.now())).where(*_still_leads(fence))
    now = (await tx.execute(query)).scalar_one_or_none()
    await _write(tx, fence, {"lease_until": now, "resigned_at": now} if now else None)


async def record_first_write(tx: Transaction, fence: Fence) -> None:
    """Notes the first write of the term's leader. Raises `StaleTermError` if a newer term began."""
    arrived = update(handovers).where(handovers.c.term == fence.term, handovers.c.ended_at.is_(None))
    await tx.execute(arrived.values(ended_at=tx.dialect.clock(tx.now())))
    await check_fence(tx, fence)


async def last_handovers(connection: Connection, limit: int) -> list[Handover]:
    """The newest first."""
    query = select(handovers).order_by(handovers.c.term.desc()).limit(limit)
    return [
        Handover(
            term=row.term,
            from_holder=row.from_holder,
            to_holder=row.to_holder,
            mode=LeaderMode(row.mode),
            reason=ElectionReason(row.reason),
            began_at=row.began_at,
            gained_at=row.gained_at,
            ended_at=row.ended_at,
        )
        for row in await connection.execute(query)
    ]


async def _newest(tx: Transaction) -> int:
    """The newest term of which there is a trace, whatever was lost or restored: no term ever has two holders."""
    return (await tx.execute(select(func.max(handovers.c.term)))).scalar_one() or 0


async def _locked(tx: Transaction, lease_s: float) -> Lease:
    """The row, which no other transaction changes or checks until the end of the transaction."""
    query = _query(tx).with_for_update()
    found = (await tx.execute(query)).first()
    if found is None:
        now = tx.now()
        await tx.dialect.insert_absent(tx, _INSERT, [(LEADER, 0, NOBODY, LeaderMode.BROKER.value, now, now, None)])
        found = (await tx.execute(query)).first()
    lease = _lease(found, lease_s)
    assert lease is not None, "the row is never deleted"
    return lease


def _query(connection: Connection) -> Select[Any]:
    columns = [leases.c[name] for name in _COLUMNS]
    return select(*columns, connection.dialect.clock(connection.now()).label("now")).where(_MINE)


def _lease(row: Any, lease_s: float) -> Lease | None:
    if row is None:
        return None
    return Lease(
        term=row.term,
        holder=row.holder,
        mode=LeaderMode(row.mode),
        lease_until=row.lease_until,
        gained_at=row.gained_at,
        resigned_at=row.resigned_at,
        now=row.now,
        longest=timedelta(seconds=PLAUSIBLE_LEASE_FACTOR * lease_s),
    )


def _still_leads(fence: Fence) -> Sequence[Any]:
    return (_MINE, leases.c.term == fence.term, leases.c.holder == fence.holder)


async def _write(tx: Transaction, fence: Fence, values: dict[str, Any] | None) -> None:
    renewed = update(leases).where(*_still_leads(fence))
    if values is None or (await tx.execute(renewed.values(values))).rowcount != 1:
        raise StaleTermError(_refusal(fence, "a newer term began"))


async def _record(
    tx: Transaction, fence: Fence, lease: Lease, candidacy: Candidacy, reason: ElectionReason, noticed_s: float
) -> None:
    began = lease.now - timedelta(seconds=noticed_s)
    if reason is ElectionReason.RESIGNED and lease.resigned_at is not None:
        began = lease.resigned_at
    elif reason is ElectionReason.EXPIRED:
        began = lease.lease_until
    if candidacy.there is not None:
        began = max(began, lease.now - timedelta(seconds=candidacy.there + noticed_s))
    began = min(began, lease.now)  # `now` is earlier after the clock was set back
    row = {
        "term": fence.term,
        "from_holder": None if lease.holder == NOBODY else lease.holder,
        "to_holder": fence.holder,
        "mode": candidacy.mode.value,
        "reason": reason.value,
        "began_at": began,
        "gained_at": lease.now,
    }
    await tx.execute(insert(handovers).values(row))
    await tx.execute(delete(handovers).where(handovers.c.term <= fence.term - HANDOVERS_KEPT))


def _refusal(fence: Fence, reason: str) -> str:
    return f"{fence.holder} wrote as leader of term {fence.term}, but {reason}: nothing was written"
