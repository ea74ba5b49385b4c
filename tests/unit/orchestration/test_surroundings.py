"""Is what the broker told of its queues remembered within bounds?"""

from __future__ import annotations

from typing import cast

import pytest

from orchestrix.broker.port import Broker, LinkState
from orchestrix.engine import broker_status
from orchestrix.engine.broker_status import BrokerStatus


class Up:
    """A broker that has each queue, empty."""

    state, blocked, problem = LinkState.UP, None, None

    async def message_count(self, queue: str) -> tuple[int, int]:
        return 0, 1


async def test_only_the_latest_queues_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_status, "KNOWN_QUEUES_LIMIT", 3)
    around = BrokerStatus(cast(Broker, Up()))
    for number in range(20):
        assert await around.empty(["always", f"q-{number}"]) == {"always", f"q-{number}"}
    assert list(around._known) == ["q-18", "always", "q-19"]
