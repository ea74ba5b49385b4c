"""How do authors of sagas and of jobs test them, without servers and on virtual time?

from orchestrix.testing import between, given, given_job

def test_no_stock() -> None:
    story = given(ORDER, handlers=orders, data={"film": "Metropolis"})
    story.when("cmd.pay").fails("NoFunds", retryable=False)
    story.run()
    story.expect(state="FAILED", undone=["reserve"])

def test_reindex() -> None:
    story = given_job(reindex, payload={"pages": 3}).cancel(after="page 2").run()
    story.expect(status="CANCELLED", logs=["page 1", "page 2"])

Handlers in production import `crash_point` from here: no other module of the package is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrix.crash import crash_point
    from orchestrix.testing.durations import between
    from orchestrix.testing.environment import StoryError
    from orchestrix.testing.expectations import Ending
    from orchestrix.testing.job_scenario import JobStory, given_job
    from orchestrix.testing.member_scenario import MemberStory, given_member
    from orchestrix.testing.scenario import Story, given
    from orchestrix.testing.stubs import When

_HOME_OF = {
    "Ending": "orchestrix.testing.expectations",
    "JobStory": "orchestrix.testing.job_scenario",
    "MemberStory": "orchestrix.testing.member_scenario",
    "Story": "orchestrix.testing.scenario",
    "StoryError": "orchestrix.testing.environment",
    "When": "orchestrix.testing.stubs",
    "between": "orchestrix.testing.durations",
    "crash_point": "orchestrix.crash",
    "given": "orchestrix.testing.scenario",
    "given_job": "orchestrix.testing.job_scenario",
    "given_member": "orchestrix.testing.member_scenario",
}

__all__ = [
    "Ending",
    "JobStory",
    "MemberStory",
    "Story",
    "StoryError",
    "When",
    "between",
    "crash_point",
    "given",
    "given_job",
    "given_member",
]


def __getattr__(name: str) -> Any:
    """A public name, from its module, which is imported lazily."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
