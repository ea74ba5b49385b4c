"""What can the unit tests ask for?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from orchestrix import clock
from orchestrix.testing.simulation.virtual_time import VirtualLoop
from tests.fakes.time import LoopTime


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked `virtual_time` run on a loop whose waits take no time."""
    return {"virtual": VirtualLoop} if _is_virtual(item) else {"machine": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _virtual_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """The product's clock is that of the loop."""
    if not _is_virtual(request.node):
        yield
        return
    with clock.use(LoopTime()):
        yield


def _is_virtual(item: pytest.Item) -> bool:
    """Whether the nearest mark, of the test before that of its module, is not `virtual_time(False)`."""
    mark = item.get_closest_marker("virtual_time")
    return mark is not None and mark.args != (False,)
