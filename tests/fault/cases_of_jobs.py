"""Which script brings a process to which crash point of jobs, and how does every job end then?"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.domain.jobs import CANCELLED, SUCCEEDED
from tests.fault.broadcast_deaths import cancelling_of_children_dies, firing_of_a_broadcast_dies
from tests.fault.crashing import At
from tests.fault.crashing_jobs import JobRig
from tests.fault.executor_deaths import caller_dies, reporter_dies
from tests.fault.job_deaths import (
    burial_dies,
    canceller_dies,
    firing_dies,
    heir_dies,
    keeper_dies,
    last_word_dies,
    leaver_dies,
    node_dies,
    releasing_dies,
    retrier_dies,
    retry_dies,
    silent_sweep_dies,
    taker_dies,
    timed_out_rescue_dies,
    worker_dies,
)

Script = Callable[[JobRig, At], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Case:
    """How a process comes to a point, which it passes at least `most` times, and how every job ends then.

    That takes it `attempts` at most. Where only one `passage` is meant, it is that; a `pair` is two nodes, which do not
    share a database that has one writer.
    """

    script: Script
    most: int = 1
    passage: int | None = None
    attempts: int = 1
    state: str = SUCCEEDED
    pair: bool = False

    async def run(self, rig: JobRig, point: str, turn: int) -> None:
        """One death, and all that follows."""
        await rig.next_round()
        try:
            await self.script(rig, At(point, self.passage or 1 + turn % self.most))
            await rig.all_well(self.state, self.attempts)
        finally:
            rig.close()


JOB_CASES: Final[dict[str, Case]] = {
    "jobs.submit.before_commit": Case(node_dies, most=3),
    "jobs.submit.after_commit": Case(node_dies, most=3),
    "jobs.dispatch.after_claim": Case(node_dies, most=3),
    "jobs.dispatch.before_commit": Case(node_dies, most=3),
    "jobs.dispatch.before_commit retry": Case(retry_dies, passage=2, attempts=2),
    "jobs.dispatch.after_commit": Case(node_dies, most=3),
    "jobs.dispatch.after_commit retry": Case(retry_dies, passage=2, attempts=2),
    "jobs.broadcast.before_commit": Case(firing_of_a_broadcast_dies),
    "jobs.broadcast.after_commit": Case(firing_of_a_broadcast_dies),
    "jobs.children.before_commit": Case(cancelling_of_children_dies, state=CANCELLED),
    "jobs.children.after_commit": Case(cancelling_of_children_dies, state=CANCELLED),
    "jobs.take.after_receive": Case(node_dies, most=2),
    "jobs.take.after_receive handed": Case(taker_dies, pair=True),
    "jobs.take.before_commit": Case(node_dies, most=2),
    "jobs.take.before_commit handed": Case(taker_dies, pair=True),
    "jobs.take.after_commit": Case(node_dies, most=2),
    "jobs.take.after_commit handed": Case(taker_dies, pair=True),
    "jobs.take.before_answer": Case(taker_dies, pair=True),
    "jobs.take.after_dead_letter": Case(burial_dies),
    "jobs.take.before_ack": Case(node_dies, most=2),
    "jobs.take.before_ack handed": Case(taker_dies, pair=True),
    "jobs.events.after_receive": Case(node_dies, most=3),
    "jobs.events.before_commit": Case(node_dies, most=3),
    "jobs.events.before_commit retry": Case(retry_dies, passage=2, attempts=2),
    "jobs.events.after_commit": Case(node_dies, most=3),
    "jobs.events.after_commit retry": Case(retry_dies, passage=2, attempts=2),
    "jobs.events.after_dead_letter": Case(burial_dies),
    "jobs.events.before_ack": Case(node_dies, most=3),
    "jobs.cancel.before_commit": Case(canceller_dies, state=CANCELLED),
    "jobs.cancel.after_commit": Case(canceller_dies, state=CANCELLED),
    "jobs.retry.before_commit": Case(retrier_dies, attempts=2),
    "jobs.retry.after_commit": Case(retrier_dies, attempts=2),
    "jobs.call.before_call": Case(caller_dies),
    "jobs.call.after_answer": Case(caller_dies),
    "jobs.report.after_declare elsewhere": Case(reporter_dies, pair=True),
    "jobs.report.before_notice elsewhere": Case(reporter_dies, pair=True),
    "jobs.report.before_answer": Case(caller_dies, most=3),
    "jobs.events.after_commit of a report": Case(caller_dies, most=3),
    "jobs.report.before_answer elsewhere": Case(reporter_dies, most=3, pair=True),
    "jobs.rescue.before_commit timed_out": Case(timed_out_rescue_dies, attempts=3),
    "jobs.rescue.before_commit silent": Case(silent_sweep_dies, attempts=3),
    "jobs.rescue.before_commit orphans": Case(heir_dies),
    "jobs.rescue.after_commit timed_out": Case(timed_out_rescue_dies, attempts=3),
    "jobs.rescue.after_commit silent": Case(silent_sweep_dies, attempts=3),
    "jobs.rescue.after_commit orphans": Case(heir_dies),
    "jobs.handoff.before_mark": Case(leaver_dies, pair=True),
    "jobs.handoff.after_mark": Case(leaver_dies, pair=True),
    "jobs.handoff.after_publish": Case(leaver_dies, pair=True),
    "jobs.handoff.after_confirm": Case(leaver_dies, pair=True),
    "jobs.handoff.after_answer": Case(leaver_dies, pair=True),
    "jobs.handoff.after_close": Case(leaver_dies, pair=True),
    "jobs.end.before_delete": Case(node_dies),
    "jobs.end.after_delete": Case(node_dies),
    "jobs.end.after_commit": Case(node_dies),
    "deadletters.before_commit order": Case(keeper_dies, attempts=2),
    "deadletters.after_commit order": Case(keeper_dies, attempts=2),
    "leader.after_token": Case(heir_dies),
    "leader.before_commit": Case(heir_dies),
    "leader.after_commit": Case(heir_dies),
    "leader.after_new_token": Case(heir_dies),
    "leader.before_resign": Case(leaver_dies),
    "leader.after_resign": Case(leaver_dies),
    "nodes.death.before_commit": Case(heir_dies),
    "nodes.death.after_commit": Case(heir_dies),
    "schedules.fire.before_commit": Case(firing_dies, most=2),
    "schedules.fire.after_commit": Case(firing_dies, most=2),
    "schedules.release.before_commit": Case(releasing_dies),
    "schedules.release.after_commit": Case(releasing_dies),
    "worker.jobs.after_receive": Case(worker_dies, most=2, attempts=2),
    "worker.jobs.before_ack": Case(worker_dies, most=3, attempts=3),
    "worker.jobs.during_work": Case(worker_dies, most=3, attempts=2),
    "worker.jobs.after_work": Case(worker_dies, most=3, attempts=2),
    "worker.jobs.after_publish": Case(worker_dies, most=3, attempts=3),
    "worker.jobs.after_publish ended": Case(last_word_dies, passage=2, attempts=2),
    "worker.jobs.after_confirm": Case(worker_dies, most=3, attempts=3),
    "worker.jobs.after_confirm ended": Case(last_word_dies, passage=2, attempts=2),
}
"""By point; where there are several ways to one, with a word behind it."""
