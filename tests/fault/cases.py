"""Which script brings a process to which crash point, and how does everything end then?"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.saga.definition import COMPLETED, FAILED
from tests.fault.crashing import (
    APPS,
    At,
    Rig,
    forgotten,
    keyed_start_dies,
    node_buries,
    node_dies,
    wake_ups_are_due,
    worker_buries,
    worker_dies,
    worker_sets_aside,
)
from tests.fault.crashing_control import (
    asked_node_dies,
    mover_dies,
    redispatcher_dies,
    redriving_dies,
    retry_is_due,
    step_is_late,
    undo_dies,
    undo_is_due,
)
from tests.fault.crashing_held import begin_is_told, held_is_applied
from tests.fault.crashing_migrate import migrator_dies
from tests.fault.crashing_registry import registering_dies, removing_dies, sweeping_dies

Script = Callable[[Rig, At], Coroutine[Any, Any, None]]
DATABASES: Final = ("postgresql", "mariadb", "sqlite")
AT_THE_DATABASE: Final = ("_commit", ".after_claim", ".after_chunk")
"""So end the names of the points before or after a commit."""


@dataclass(frozen=True)
class Case:
    """How a process comes to a point, which it passes at least `most` times, and in which state every app ends.

    Without a `state` they go the good run's way. `apps` says whether the script has any: else it checks its own end.
    """

    script: Script
    most: int = 3
    state: str | None = None
    apps: bool = True

    @property
    def drafts(self) -> int:
        """How many half-made repositories can be left: those in the hands of a worker that dies, until it is an hour
        later that one starts."""
        return APPS if self.script in (worker_dies, undo_dies) else 0

    async def run(self, rig: Rig, point: str, passage: int) -> None:
        """One death, and all that follows."""
        rig.next_round()
        await self.script(rig, At(point, 1 + passage % self.most))
        if self.apps:
            await rig.all_well(drafts=self.drafts * rig.rounds, state=self.state)


CASES: Final[dict[str, Case]] = {
    "start.before_commit": Case(node_dies),
    "start.after_commit": Case(node_dies),
    "start.keyed_after_commit": Case(keyed_start_dies),
    "outbox.after_claim": Case(wake_ups_are_due, most=1),
    "outbox.before_publish": Case(node_dies),
    "outbox.after_publish": Case(node_dies),
    "outbox.after_confirm": Case(node_dies),
    "events.after_receive": Case(node_dies),
    "events.before_commit": Case(node_dies),
    "events.after_commit": Case(node_dies),
    "events.before_ack": Case(node_dies),
    "events.after_dead_letter": Case(node_buries, most=1),
    "begins.before_ack": Case(begin_is_told, most=1),
    "held.before_commit": Case(held_is_applied),
    "held.after_commit": Case(held_is_applied),
    "timers.before_commit": Case(wake_ups_are_due, most=1),
    "timers.before_commit retry": Case(retry_is_due, most=1, state=COMPLETED),
    "timers.before_commit deadline": Case(step_is_late, most=1, apps=False),
    "timers.before_commit undo": Case(undo_is_due, most=1, state=FAILED),
    "timers.after_commit": Case(wake_ups_are_due, most=1),
    "timers.after_commit retry": Case(retry_is_due, most=1, state=COMPLETED),
    "timers.after_commit deadline": Case(step_is_late, most=1, apps=False),
    "timers.after_commit undo": Case(undo_is_due, most=1, state=FAILED),
    "control.before_commit": Case(asked_node_dies, state=FAILED),
    "control.after_commit": Case(asked_node_dies, state=FAILED),
    "migrate.before_commit": Case(migrator_dies, most=1, apps=False),
    "migrate.after_commit": Case(migrator_dies, most=1, apps=False),
    "redispatch.after_claim": Case(forgotten, most=1),
    "redispatch.before_declare": Case(forgotten, most=1),
    "redispatch.after_chunk": Case(redispatcher_dies, most=1),
    "deadletters.before_commit": Case(mover_dies, most=1),
    "deadletters.after_commit": Case(mover_dies, most=1),
    "redrive.before_commit": Case(redriving_dies),
    "redrive.after_commit": Case(redriving_dies),
    "registry.register.before_commit": Case(registering_dies, apps=False),
    "registry.register.after_commit": Case(registering_dies, apps=False),
    "registry.remove.before_commit": Case(removing_dies, apps=False),
    "registry.remove.after_commit": Case(removing_dies, apps=False),
    "registry.cleanup.before_commit": Case(sweeping_dies, most=1, apps=False),
    "registry.cleanup.after_commit": Case(sweeping_dies, most=1, apps=False),
    "worker.after_receive": Case(worker_dies),
    "worker.after_guard": Case(worker_dies),
    "git.during_work": Case(worker_dies),
    "git.in_undo": Case(undo_dies, state=FAILED),
    "worker.after_effect": Case(worker_dies),
    "worker.after_publish": Case(worker_dies),
    "worker.after_confirm": Case(worker_dies),
    "worker.after_dead_letter": Case(worker_buries, most=1),
    "worker.set_aside.before_publish": Case(worker_sets_aside),
    "worker.set_aside.after_publish": Case(worker_sets_aside),
    "worker.set_aside.after_confirm": Case(worker_sets_aside),
}
"""By point; where there are several ways to one, with a word behind it."""


def databases(name: str) -> tuple[str, ...]:
    """On which databases a case is run.

    A point before or after a commit is asked on each: there it is the database that decides what a dead process has
    left. All other points lie between messages, files and what was committed long before, and a further way to a point
    comes to the same statements: these are asked on one database each, in turns.
    """
    if name.endswith(AT_THE_DATABASE):
        return DATABASES
    return (DATABASES[list(CASES).index(name) % len(DATABASES)],)
