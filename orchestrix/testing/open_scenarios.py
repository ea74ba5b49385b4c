"""Open scenarios: the scenarios of the running test, for the report of a failure."""

from __future__ import annotations

import weakref
from typing import Protocol


class OpenScenario(Protocol):
    """A scenario of a saga or of a job."""

    def table(self) -> str:
        """All that happened."""


stories: weakref.WeakKeyDictionary[OpenScenario, None] | None = None
"""In the order of their creation; None where they are not recorded. The references are weak."""


def add(story: OpenScenario) -> None:
    """Adds a scenario."""
    if stories is not None:
        stories[story] = None
