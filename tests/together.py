"""Which tests does one process run one after another, when several processes share the tests?"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
        "tests/fault/test_crash_points.py::test_dev_dies",
        "tests/integration/cli/test_dev.py",
        "tests/integration/cli/test_dev_stop.py",
        "tests/integration/cli/test_foreign_database.py",
        "tests/integration/cli/test_hard_times.py",
        "tests/integration/cli/test_process.py::test_dev_",
    ),
    # Three upgraded databases are theirs.
    "crash points": ("tests/fault/test_crash_points.py",),
    "crash points of jobs": ("tests/fault/test_crash_points_of_jobs.py",),
    # They start servers of their own; and two of them at once would be two storms.
    "jobs in storms": ("tests/acceptance/test_jobs.py",),
    # These break nothing.
    "idle clients": ("tests/fault/test_outside_idle_clients.py",),
    "poison": ("tests/fault/test_outside_poison.py",),
    "proxy": ("tests/fault/test_proxy.py",),
    # They break servers of their own, which take long to start.
    "breakable servers": ("tests/fault/",),
}
"""The groups, and how the ids of their tests begin; the first that fits counts. All other tests go where there is room.
"""
WAITING: Final = ("tests/fault/", "tests/acceptance/")
"""So begin the ids of tests that mostly wait, for processes and servers. Half of all processes run these as long as
there are others, which keep the processor busy meanwhile."""


def group(test: str) -> str:
    """The name of the test's group, or the test's own id."""
    return next((name for name, starts in TOGETHER.items() if test.startswith(starts)), test)


def waits(scope: str) -> bool:
    """Whether the tests of a group, or the one test, mostly wait."""
    return scope.startswith(WAITING) or scope in TOGETHER


def choose(queue: Iterable[str], others: Collection[Iterable[str]]) -> str:
    """Which scope of the queue a process gets when each of the others still has those.

    In the queue those that wait come first: the groups are the largest, and tests/acceptance is the first folder.
    """
    enough = sum(any(map(waits, scopes)) for scopes in others) >= (len(others) + 1) // 2
    scopes = iter(queue)
    first = next(scopes)
    return next((scope for scope in scopes if not waits(scope)), first) if enough and waits(first) else first


class Together(LoadScopeScheduling):
    """Gives a process a group, or a test without one, whenever it has little to do: the largest group first.

    pytest-xdist's own `loadgroup` writes the group into the test's id, and does nothing where pytest does not let it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        others = [self._open(work) for other, work in self.assigned_work.items() if other is not node]
        self.workqueue.move_to_end(choose(self.workqueue, others), last=False)
        super()._assign_work_unit(node)

    def _open(self, work: dict[str, dict[str, bool]]) -> list[str]:
        return [scope for scope, tests in work.items() if not all(tests.values())]
