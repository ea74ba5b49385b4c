"""Which mistakes about jobs and their owners are planted to see that the simulation finds them?

Each is one that a hurried change could bring in. They are put around the product from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pytest

from orchestrix.broker.port import Delivery
from orchestrix.broker.topology import JOB_ASSIGNED, JOB_HANDOFF
from orchestrix.domain import jobs as rules
from orchestrix.domain.handoff import SHUTDOWN
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.leases import Fence
from orchestrix.jobs import messages
from orchestrix.jobs.events import ChannelBatch, JobEventListener
from orchestrix.jobs.messages import HandoffOffer
from orchestrix.jobs.ownership import handoff_subscriber
from orchestrix.jobs.ownership.handoff_publisher import JobHandoffPublisher
from orchestrix.jobs.rescue.job_rescuer import JobRescuer
from orchestrix.persistence.cluster import leases
from orchestrix.saga.messages import dump
from orchestrix.testing.broker.consumer import MemoryConsumer

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Found:
    """By which words the notary names it, and in which of the steered seeds; in any if there is none."""

    words: str
    steered: str | None = None


# Acknowledged before the commit.


def _acknowledged_early(patch: pytest.MonkeyPatch, queues: tuple[str, ...]) -> None:
    receive = MemoryConsumer.receive

    async def early(consumer: MemoryConsumer, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        deliveries = await receive(consumer, limit, linger)
        await consumer.acknowledge([one for one in deliveries if one.queue.endswith(queues)])
        return deliveries

    patch.setattr(MemoryConsumer, "receive", early)


def words_acknowledged_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """What a worker says is acknowledged as it comes."""
    _acknowledged_early(patch, (".status", ".logs"))


def words_acknowledged_as_they_are_written(patch: pytest.MonkeyPatch) -> None:
    """What a worker says is acknowledged inside the transaction that writes it."""
    write = JobEventListener._write

    async def early(events: JobEventListener, batch: Sequence[ChannelBatch], tx: Any) -> Any:
        written = await write(events, batch, tx)
        for heard in batch:
            if written.verdicts[heard.job_id].value != "lost":
                await heard.consumer.acknowledge(heard.deliveries)
        return written

    patch.setattr(JobEventListener, "_write", early)


def new_jobs_acknowledged_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The news that a job needs an owner is acknowledged as it comes."""
    _acknowledged_early(patch, (JOB_ASSIGNED,))


def offers_acknowledged_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """An offer of a job is acknowledged as it comes."""
    _acknowledged_early(patch, (JOB_HANDOFF,))


# The epoch.


def the_owner_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Whoever reads what a worker says writes it."""
    patch.setattr(JobEventListener, "_is_mine", lambda events, job, heard: job is not None)


def the_epoch_of_words_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """The owner of a job writes what it has read under any epoch."""

    def mine(events: JobEventListener, job: JobRow | None, heard: ChannelBatch) -> bool:
        return job is not None and job.owner == events._node

    patch.setattr(JobEventListener, "_is_mine", mine)


def the_epoch_of_offers_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """An offer counts as long as the job is the node's that has made it."""

    def fits(job: JobRow, offer: HandoffOffer) -> bool:
        return job.owner == offer.from_node

    patch.setattr(handoff_subscriber, "_as_offered", fits)


def ownership_without_compare_and_set(patch: pytest.MonkeyPatch) -> None:
    """A node that hears that a job needs an owner takes it, whoever has it by then."""
    patch.setattr(handoff_subscriber, "_is_free", lambda job: bool(job.channels))
    patch.setattr(handoff_subscriber, "_as_offered", lambda job, offer: True)


# The term.


def _unchecked(patch: pytest.MonkeyPatch, excused: Callable[[], bool]) -> None:
    check = leases.check_fence

    async def careless(tx: Any, fence: Fence) -> None:
        if not excused():
            await check(tx, fence)

    patch.setattr(leases, "check_fence", careless)


def _in_task(name: str, patch: pytest.MonkeyPatch) -> None:
    def excused() -> bool:
        task = asyncio.current_task()
        return task is not None and task.get_name() == name

    _unchecked(patch, excused)


_REASON: ContextVar[str] = ContextVar("reason", default="")


def _for_reason(reason: str, patch: pytest.MonkeyPatch) -> None:
    end: Callable[..., Awaitable[None]] = JobRescuer._end

    async def noted(watchman: JobRescuer, find: Any, judge: Any, why: str) -> None:
        token = _REASON.set(why)
        try:
            await end(watchman, find, judge, why)
        finally:
            _REASON.reset(token)

    patch.setattr(JobRescuer, "_end", noted)
    _unchecked(patch, lambda: _REASON.get() == reason)


def _named(name: str, plant: Plant) -> Plant:
    plant.__name__ = name
    return plant


UNCHECKED: Final[dict[Plant, Found]] = {
    _named(f"{name}_without_the_term", plant): Found("I6", steered)
    for name, plant, steered in (
        ("dispatch", partial(_in_task, "job dispatch"), "dispatch"),
        ("schedules", partial(_in_task, "schedules"), "schedules"),
        ("time_outs", partial(_for_reason, "timed out"), "time-outs"),
        ("lost_workers", partial(_for_reason, "worker silent"), "lost workers"),
        ("orphans", partial(_in_task, "orphan detector"), "orphans"),
        ("deaths", partial(_in_task, "failure detector"), "deaths"),
    )
}
"""Each sweep of the leader without the check of its term."""


# Hand-off.


def a_node_that_drains_reads_no_more(patch: pytest.MonkeyPatch) -> None:
    """A node that gives its jobs away stops reading them at once, and not when another has them."""
    give = JobHandoffPublisher.hand_off

    async def deaf(giver: JobHandoffPublisher, reason: str, most: int | None = None) -> int:
        if reason == SHUTDOWN:
            await giver._owned_jobs.leave(list(giver._owned_jobs.epochs))
        return await give(giver, reason, most)

    patch.setattr(JobHandoffPublisher, "hand_off", deaf)


def offers_without_reason(patch: pytest.MonkeyPatch) -> None:
    """Offers do not say why."""

    def offer(job_id: str, reason: str, owner: str | None, owner_epoch: int) -> bytes:
        return dump({"jobId": job_id, "fromNode": owner, "ownerEpoch": owner_epoch})

    patch.setattr(messages, "offer", offer)


def _misnamed(patch: pytest.MonkeyPatch, reasons: dict[str, str]) -> None:
    offer = messages.offer

    def misnamed(job_id: str, reason: str, owner: str | None, owner_epoch: int) -> bytes:
        return offer(job_id, reasons.get(reason, reason), owner, owner_epoch)

    patch.setattr(messages, "offer", misnamed)


def offers_at_an_end_say_crash(patch: pytest.MonkeyPatch) -> None:
    """A node that ends says that it is gone."""
    _misnamed(patch, {"Shutdown": "NodeCrash"})


def offers_after_a_crash_say_shutdown(patch: pytest.MonkeyPatch) -> None:
    """The leader says of a node that is gone that it ends."""
    _misnamed(patch, {"NodeCrash": "Shutdown"})


def orphans_are_left(patch: pytest.MonkeyPatch) -> None:
    """The orphan detector does not run."""

    async def none(tx: object, seconds: float, limit: int) -> list[JobRow]:
        return []

    patch.setattr("orchestrix.persistence.jobs.jobs.orphans", none)


# Words.


def statuses_are_applied_again(patch: pytest.MonkeyPatch) -> None:
    """A status that comes a second time counts a second time."""
    reported = rules.reported
    patch.setattr(rules, "reported", lambda job, *rest: reported(replace(job, seq=min(job.seq, 1)), *rest))


PLANTS: Final[dict[Plant, Found]] = {
    words_acknowledged_before_the_commit: Found("was acknowledged before its commit"),
    words_acknowledged_as_they_are_written: Found("was acknowledged before its commit"),
    new_jobs_acknowledged_before_the_commit: Found("the offer of"),
    offers_acknowledged_before_the_commit: Found("the offer of"),
    the_owner_is_not_asked: Found("I8"),
    the_epoch_of_words_is_not_asked: Found("under epoch", "back and forth"),
    the_epoch_of_offers_is_not_asked: Found("which had not offered it", "back and forth"),
    ownership_without_compare_and_set: Found("which had not offered it"),
    **UNCHECKED,
    a_node_that_drains_reads_no_more: Found("S0-41", "drained alone"),
    offers_without_reason: Found("S0-42, S0-56"),
    offers_at_an_end_say_crash: Found("S0-42, S0-56"),
    offers_after_a_crash_say_shutdown: Found("S0-42, S0-56"),
    orphans_are_left: Found("I2"),
    statuses_are_applied_again: Found("was applied after"),
}
"""Each plant, and how it is found."""
