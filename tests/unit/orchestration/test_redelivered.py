"""Is an event that came before handled alone, so that one that kills its reader takes no others along?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from orchestrix.broker.port import Consumer, Delivery
from orchestrix.engine.event_listener import EventListener
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING


def delivery(tag: int, *, redelivered: bool) -> Delivery:
    """The event with that tag."""
    return Delivery(
        body=b"{}",
        queue="evt.gitRepoCreated",
        exchange="",
        routing_key="evt.gitRepoCreated",
        message_id=f"m-{tag}",
        correlation_id=None,
        type="evt.gitRepoCreated",
        headers={},
        redelivered=redelivered,
        delivery_count=int(redelivered),
        tag=tag,
        session=1,
    )


class OneBatch:
    """A consumer that has just these."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = list(deliveries)

    async def receive(self, limit: int) -> list[Delivery]:
        return self._deliveries[:limit]


async def test_redelivered_events_are_handled_one_by_one_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = cast(Any, None)
    catalog = Catalog([APP_PROVISIONING])
    listener = EventListener(nothing, nothing, nothing, nothing, catalog, node="n", batch=10)
    listener._consumer = cast(Consumer, OneBatch([delivery(tag, redelivered=tag in (2, 4)) for tag in range(1, 6)]))
    handled: list[list[int]] = []

    async def finish(consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        handled.append([one.tag for one in deliveries])

    monkeypatch.setattr(listener, "_finish", finish)
    await listener._round()
    assert handled == [[1, 3, 5], [2], [4]]
