"""Opened: which stories the test that runs has told, for the report of one that fails."""

from __future__ import annotations

import weakref
from typing import Protocol


class OpenScenario(Protocol):
    """A story of a saga or of a job."""

    def table(self) -> str:
        """All that happened."""


stories: weakref.WeakKeyDictionary[OpenScenario, None] | None = None
"""In the order in which they were told; None where nobody asks for them. It keeps no story alive."""


def add(story: OpenScenario) -> None:
    """One more."""
    if stories is not None:
        stories[story] = None
