"""Clerk: who wants jobs done in a simulation, now or by a schedule, and cancels some."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from orchestrix import clock
from orchestrix.domain.schedules import Overlap
from orchestrix.errors import ConflictError, Invalid, NotFound, RetryableError
from orchestrix.jobs.submission import JobRequest
from orchestrix.saga.job_targets import JobTarget
from orchestrix.schedules.service import ScheduleRequester
from orchestrix.testing.simulation.virtual_time import ProcessKilled, elapse
from tests.simulation.hands import QUEUE
from tests.simulation.house import NodeMember, Owners

TIME_MS, SHORT_MS = 15_000, 4_000
"""The time of an attempt; the short one is over before a worker counts as silent."""
TIMETABLE = 10.0
"""Seconds for which a schedule makes jobs."""


class Clerk:
    """Puts jobs down, and cancels some."""

    def __init__(self, realm: Owners) -> None:
        self._realm, self._dice = realm, realm.dice("clerk")
        self._time_ms = SHORT_MS if realm.steered == "time-outs" else TIME_MS

    async def run(self) -> None:
        """Asks until everything is put down."""
        dice, realm = self._dice, self._realm
        realm.wanted = dice.randrange(3, 9)
        planned = dice.random() < 0.4 or realm.steered == "schedules"
        while len(realm.submitted) < realm.wanted:
            await elapse(dice.uniform(0.1, 3.0))
            nodes = realm.nodes
            if nodes and planned:
                planned = not await self._plan(dice.choice(nodes))
            elif nodes:
                await self._ask(dice.choice(nodes))

    async def more(self, count: int) -> None:
        """Puts down so many more, soon one after the other."""
        realm = self._realm
        realm.wanted += count
        while len(realm.submitted) < realm.wanted:
            await elapse(self._dice.uniform(0.05, 0.5))
            if realm.nodes:
                await self._ask(self._dice.choice(realm.nodes))

    async def _plan(self, member: NodeMember) -> bool:
        """Jobs that begin by themselves, for a while; whether that was answered."""
        assert member.node is not None
        fields = {
            "name": f"plan {self._dice.random()}",
            "interval_ms": 2_500,
            "ends_at": clock.now() + timedelta(seconds=TIMETABLE),
            "overlap": self._dice.choice(list(Overlap)),
            "job": {"queue": QUEUE, "handler": "report", "retries": 3, "timeout_ms": TIME_MS},
        }
        return (
            await self._done(member, member.node.schedules.create(fields, ScheduleRequester("clerk", "wanted")))
            is not None
        )

    async def _ask(self, member: NodeMember) -> None:
        assert member.node is not None
        if self._realm.submitted and self._dice.random() < 0.15:
            unwanted = self._dice.choice(self._realm.submitted)
            await self._done(member, member.node.jobs.canceller.cancel(unwanted, "unwanted", "clerk"))
            return
        order = JobRequest(JobTarget(QUEUE), "report", retries=8, timeout_ms=self._time_ms)
        job = await self._done(member, member.node.jobs.submitter.submit(order))
        if job is not None:
            self._realm.submitted.append(job.id)

    async def _done(self, member: NodeMember, work: Any) -> Any:
        """The answer; None where there is none, or it is a refusal."""
        try:
            asking = member.process.spawn(work)
        except ProcessKilled:
            return None
        await asyncio.wait({asking}, timeout=20.0)
        if not asking.done():
            asking.add_done_callback(lambda late: late.cancelled() or late.exception())
            return None
        try:
            return asking.result()
        except (RetryableError, ConflictError, NotFound, Invalid):
            return None
