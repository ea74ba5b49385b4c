"""Which tests does one process run one after another, when several processes share the tests?"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = {
    # The broker of `dev` listens near port 5673: while one is dead, its port must not become another's.
    "dev": (
        "tests/acceptance/test_dev.py",
        "tests/acceptance/test_dev_edits.py",
        "tests/acceptance/test_init.py",
        "tests/acceptance/test_own_project.py",
        "tests/acceptance/test_own_saga.py",
        "tests/acceptance/test_readme_pika_worker.py::test_it_shares_the_queue_of_dev",
        "tests/acceptance/test_readme_try_it.py",
        "tests/acceptance/test_trace_export.py",
        "tests/fault/test_crash_points.py::test_dev_dies",
        "tests/integration/cli/test_dev.py",
        "tests/integration/cli/test_dev_stop.py",
        "tests/integration/cli/test_foreign_database.py",
        "tests/integration/cli/test_hard_times.py",
        "tests/integration/cli/test_ports_of_processes.py",
        "tests/integration/cli/test_process.py::test_dev_",
        "tests/integration/cli/test_reload.py",
        "tests/integration/cli/test_workers_seen.py",
        "tests/integration/documents/test_shard_members.py",
        "tests/integration/jobs/test_retry_in_dev.py",
    ),
    # Three upgraded databases are theirs.
    "crash points of sagas": ("tests/fault/test_crash_points.py",),
    "crash points of jobs": ("tests/fault/test_crash_points_of_jobs.py",),
    # They start servers of their own; and two of them at once would be two storms.
    "jobs in storms": ("tests/acceptance/test_jobs.py",),
    # These break nothing.
    "idle clients": ("tests/fault/test_outside_idle_clients.py",),
    "poison": ("tests/fault/test_outside_poison.py",),
    "proxy": ("tests/fault/test_proxy.py",),
    "executor broadcasts": ("tests/fault/test_executor_broadcasts.py",),
    "executor jobs": ("tests/fault/test_executor_jobs.py",),
    "shards": ("tests/fault/test_shards.py", "tests/fault/test_mixed_shards.py"),
    "registry": ("tests/fault/test_registry.py",),
    "registry without nodes": ("tests/fault/test_registry_outages.py::test_nodes_are_away",),
    "registry without servers": ("tests/fault/test_registry_outages.py",),
    # They break servers of their own, which take long to start.
    "breakable servers": ("tests/fault/",),
}
"""The groups, and how the ids of their tests begin; the first that fits counts. All other tests go where there is room.
"""
LONGEST: Final = ("breakable servers", "jobs in storms", "crash points of jobs", "dev")
"""Groups that take minutes, the longest first: one that began late would run on when all else is done."""
WAITING: Final = (
    "tests/acceptance/",
    "tests/conformance/store/test_shard_coordinators.py",
    "tests/fault/",
    "tests/integration/cli/test_executor_check.py",
    "tests/integration/cli/test_worker_check.py",
    "tests/integration/cluster/",
    "tests/integration/jobs/",
    "tests/integration/metrics/",
    "tests/integration/orchestration/",
    "tests/integration/shards/",
    "tests/integration/workers/",
    "tests/servers/",
)
"""So begin the ids of tests that mostly wait, for processes, servers and times. All processes but one run these as long
as there are any; that one keeps the processor busy meanwhile."""
LIGHT: Final = ("tests/integration/",)
"""So begin the ids of those that wait for times alone, and use a quarter of a processor. One process runs them beside
all others: at the end, without anything else, they would leave the processors idle for minutes."""
BUSIEST: Final = ("crash points of sagas", "tests/simulation/")
"""So begin the scopes of tests that do not wait and take longest, the longest first: what begins last should be short.
"""
BY_FILE: Final = ("tests/unit/",)
"""So begin the ids of tests that take milliseconds: to give each of them to a process for itself would cost as much as
to run it. A process gets them by the file, and last of all."""


PROCESSORS: Final = max(2, os.cpu_count() or 1)
"""When no tests are left that wait, no more processes than these go on: more would only make each other late."""
MOST_HEAVY: Final = 3
"""Processes that run tests that wait and start processes and servers. More of them, each with what it starts, would
make each other late on two processors."""
MOST: Final = MOST_HEAVY + 2
"""Processes: one more for tests that wait and are light, and one that keeps the processor busy."""


def processes(paths: Iterable[str]) -> int:
    """How many processes run the tests of these files and folders: fewer where none of them waits."""
    quick = (*BUSIEST, *BY_FILE, "tests/architecture/")
    return min(PROCESSORS, MOST) if all(f"{path}/".startswith(quick) for path in paths) else MOST


@cache
def group(test: str) -> str:
    """The name of the test's group or its file, or the test's own id."""
    alone = test.partition("::")[0] if test.startswith(BY_FILE) else test
    return next((name for name, starts in TOGETHER.items() if test.startswith(starts)), alone)


@cache
def waits(scope: str) -> bool:
    """Whether the tests of a group, or the one test, mostly wait."""
    return not scope.startswith(BUSIEST) and (scope.startswith(WAITING) or scope in TOGETHER)


def is_light(scope: str) -> bool:
    """Whether the test waits and starts nothing."""
    return waits(scope) and scope.startswith(LIGHT)


def takes_light(others: Collection[Iterable[str]]) -> bool:
    """Whether a process takes what is light, because as many others as may have what is heavy."""
    heavy = [scopes for scopes in others if any(waits(scope) and not is_light(scope) for scope in scopes)]
    return len(heavy) >= MOST_HEAVY


def ordered(queue: Iterable[str]) -> list[str]:
    """The queue with two ends: those that wait are taken from the beginning, others from the end; the longest first."""
    scopes = list(queue)
    waiting = sorted(filter(waits, scopes), key=lambda scope: (*LONGEST, scope).index(scope))
    doing = sorted((scope for scope in scopes if not waits(scope)), key=_turn)
    return [*waiting, *reversed(doing)]


def _turn(scope: str) -> int:
    """Which of those that do not wait come first."""
    first = next((place for place, start in enumerate(BUSIEST) if scope.startswith(start)), len(BUSIEST))
    return first + scope.startswith(BY_FILE)


def from_the_end(others: Collection[Iterable[str]]) -> bool:
    """Whether a process takes what does not wait, when each of the others still has those scopes."""
    return bool(others) and all(any(map(waits, scopes)) for scopes in others)


def crowds(others: Collection[Iterable[str]], processors: int) -> bool:
    """Whether a process that takes what does not wait is one too many, beside those that go on and have no others."""
    return len([scopes for scopes in others if scopes and not any(map(waits, scopes))]) >= processors


class Together(LoadScopeScheduling):
    """Gives a process a group, or a test without one, whenever it has little to do: the largest group first.

    pytest-xdist's own `loadgroup` writes the group into the test's id, and does nothing where pytest does not let it.
    """

    _in_order = False

    def schedule(self) -> None:
        """Nobody has been given a test yet, or a process has ended before its time and others take its tests."""
        self._places = {test: place for place, test in enumerate(next(iter(self.registered_collections.values())))}
        super().schedule()

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forgets the scopes that are done: they are counted at every test."""
        super().mark_test_complete(node, item_index, duration)
        scope = group(self.registered_collections[node][item_index])
        work = self.assigned_work[node]
        if all(work[scope].values()):
            del work[scope]

    def remove_node(self, node: Any) -> str | None:
        """The test that has ended its process, if one has: others run the rest, and not that one once more."""
        work = self.assigned_work.pop(node)
        undone = [(scope, test) for scope, tests in work.items() for test, done in tests.items() if not done]
        if not undone:
            return None
        scope, deadly = undone[0]
        work[scope][deadly] = True
        self.workqueue.update({scope: tests for scope, tests in work.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return deadly

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        if not self._in_order:
            self.workqueue = OrderedDict((scope, self.workqueue[scope]) for scope in ordered(self.workqueue))
            self._in_order = True
        going_on = [other for other in self.nodes if other is not node and not other.shutting_down]
        others = [self.assigned_work[other] for other in going_on]
        nobody_waits = not waits(next(iter(self.workqueue)))
        if nobody_waits and crowds(others, PROCESSORS):
            node.shutdown()
            return
        last = nobody_waits or from_the_end(others)
        light = next(filter(is_light, self.workqueue), None) if not last and takes_light(others) else None
        scope = light or next(reversed(self.workqueue) if last else iter(self.workqueue))
        self.assigned_work[node][scope] = work = self.workqueue.pop(scope)
        node.send_runtest_some([self._places[test] for test, done in work.items() if not done])
