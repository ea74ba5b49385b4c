"""What can the unit tests ask for?"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import pytest

from orchestrix import clock
from orchestrix.testing.simulation.virtual_time import UnsupportedOnVirtualTime, VirtualLoop
from tests.fakes.time import LoopTime

_really_start = threading.Thread.start


class ThreadlessLoop(VirtualLoop):
    """A loop that no thread can reach: what a thread does takes the machine's time, of which this one has none."""

    def __init__(self) -> None:
        super().__init__()
        self._owner = threading.get_ident()

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        if threading.get_ident() != self._owner:
            _refuse()
        return super().call_soon_threadsafe(*arguments, **options)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked `virtual_time` run on a loop whose waits take no time."""
    return {"virtual": ThreadlessLoop} if _is_virtual(item) else {"machine": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _virtual_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """The product's clock is that of the loop, and no thread is started."""
    if not _is_virtual(request.node):
        yield
        return
    with clock.use(LoopTime()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _start)
        yield


def _start(thread: threading.Thread) -> None:
    """As ever where no loop runs, so that fixtures may start threads that never ask for it."""
    if isinstance(asyncio._get_running_loop(), ThreadlessLoop):
        _refuse()
    _really_start(thread)


def _refuse() -> NoReturn:
    raise UnsupportedOnVirtualTime("a thread on virtual time: mark this test with virtual_time(False)")


def _is_virtual(item: pytest.Item) -> bool:
    """Whether the nearest mark, of the test before that of its module, is not `virtual_time(False)`."""
    mark = item.get_closest_marker("virtual_time")
    return mark is not None and mark.args != (False,) and inspect.iscoroutinefunction(getattr(item, "function", None))
