"""Child counting: what the end of a child does to its broadcast, in the same transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from orchestrix.domain import job_broadcasts as rules
from orchestrix.domain.jobs import JobRow
from orchestrix.errors import Contention
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import broadcasts, jobs


@dataclass(frozen=True, slots=True)
class CountedBroadcast:
    """A broadcast that has changed by a count."""

    before: JobRow
    job: JobRow

    @property
    def has_just_ended(self) -> bool:
        """Whether it has ended by this count."""
        return self.job.ended and not self.before.ended


async def count_ended(tx: Transaction, changed: Iterable[JobRow]) -> list[CountedBroadcast]:
    """Counts the children of those broadcasts of which a child has just been stored as ended; those that changed.

    Whoever ends children locks their broadcasts with them, by `jobs.lock_with_parents`. Where one is locked by another
    transaction, this does not wait, for that could be a deadlock: it raises `Contention`.
    """
    parents = {job.parent_id for job in changed if job.ended and job.parent_id is not None}
    return await count(tx, parents) if parents else []


async def count(tx: Transaction, parents: Collection[str]) -> list[CountedBroadcast]:
    """Counts the children of these broadcasts as they are now, and ends those that are over; those that changed.

    The numbers are those of the rows, under the lock of the broadcast: to count again changes nothing.
    """
    locked = await broadcasts.try_lock(tx, parents)
    if len(locked) < len(parents):
        raise Contention("another child of the same broadcast is just ending")
    tallies = await broadcasts.tallies(tx, locked)
    changed: list[CountedBroadcast] = []
    for id, tally in sorted(tallies.items()):
        before, job = locked[id], rules.counted(locked[id], tally, tx.now())
        if (state := rules.verdict(job, tally)) is not None:
            job = rules.ended(job, state, await broadcasts.ends(tx, id), tx.now())
        if job is not before:
            changed.append(CountedBroadcast(before, job))
    await jobs.store(tx, [(one.before.version, one.job) for one in changed])
    return changed
