"""Which tests does one process run one after another, when several processes share the tests?"""

from __future__ import annotations

from typing import Final

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
    # The fork server and three upgraded databases are theirs.
    "crash points": ("tests/fault/test_crash_points.py",),
    # They break servers of their own, which take long to start; and two of them at once would be two storms.
    "breakable servers": ("tests/fault/", "tests/acceptance/test_jobs.py"),
}
"""The groups, and how the ids of their tests begin; the first that fits counts. All other tests go where there is room.

The group with the most tests is begun first.
"""


def group(test: str) -> str:
    """The name of the test's group, or the test's own id."""
    return next((name for name, starts in TOGETHER.items() if test.startswith(starts)), test)


class Together(LoadScopeScheduling):
    """Gives a process a group, or a test without one, whenever it has little to do.

    pytest-xdist's own `loadgroup` writes the group into the test's id, and does nothing where pytest does not let it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
