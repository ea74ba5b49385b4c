"""Plugin: the pytest fixture `orchestrix_story`, and the traces of scenarios in failure reports.

pytest loads it in every run of every project where Orchestrix is installed, so it imports nothing of the package before
a test uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from orchestrix.testing import open_scenarios

if TYPE_CHECKING:
    from orchestrix import Saga
    from orchestrix.testing import Story
    from orchestrix.testing.handlers import Part

SECTION = "trace of the story"


@pytest.fixture
def orchestrix_story(pytestconfig: pytest.Config) -> Iterator[Callable[..., Story]]:
    """`given` for the project's own sagas and handlers, as its orchestrix.toml names them.

    `orchestrix_story("order", data={...})` takes a saga by its name, or a `Saga`, and the other arguments of `given`.
    Its scenarios are closed after the test.
    """
    from orchestrix.testing import given
    from orchestrix.testing.project import AuthorProject

    project, stories = AuthorProject(pytestconfig.rootpath), []

    def make_story(saga: str | Saga, *, handlers: Part | Iterable[Part] | None = None, **more: Any) -> Story:
        found = project.saga(saga) if isinstance(saga, str) else saga
        story = given(found, handlers=project.handlers(found) if handlers is None else handlers, **more)
        stories.append(story)
        return story

    yield make_story
    for story in stories:
        story.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Each test has its own scenarios."""
    before, open_scenarios.stories = open_scenarios.stories, weakref.WeakKeyDictionary()
    try:
        return (yield)
    finally:
        open_scenarios.stories = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the traces of its scenarios, except those that its error shows already."""
    report = yield
    if report.failed and open_scenarios.stories:
        shown = str(call.excinfo.value) if call.excinfo is not None else ""
        report.sections += [(SECTION, table) for table in _tables(list(open_scenarios.stories)) if table not in shown]
    return report


def _tables(stories: Iterable[open_scenarios.OpenScenario]) -> Iterator[str]:
    for story in stories:
        with suppress(Exception):  # one that was never run, or is closed: the test's own error is what matters
            yield story.table()
