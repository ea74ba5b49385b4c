"""Child routing: on which executors the attempts of a child run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrix.domain import job_broadcasts
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.routing import Strategy, UnknownExecutor
from orchestrix.jobs.executors.port import PickAddresses
from orchestrix.persistence.engine import Transaction


def for_children(pick: PickAddresses) -> PickAddresses:
    """`pick`, which gives a child's first attempt to the executor that it was made for, if that is still there; other
    attempts to any executor of the group, in the order of `job_broadcasts.in_turn`.
    """

    async def picked(tx: Transaction, job: JobRow) -> Sequence[str]:
        if job.parent_id is None:
            return await pick(tx, job)
        if job.attempt <= 1:
            try:
                return await pick(tx, job)
            except UnknownExecutor:  # it has left since the broadcast was fired, and surely does not have the attempt
                pass
        every = await pick(tx, replace(job, routing=Strategy.FAILOVER, routing_address=None))
        return job_broadcasts.in_turn(job, every)

    return picked
