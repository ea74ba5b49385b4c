"""Does a commit of this process wake whoever waits for that saga at once, without a look at the database?"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrix.engine.change_notifier import SagaChangeNotifier


def moved(version: int, saga: str = "app", id: int = 1) -> Any:
    """An instance at that version."""
    return SimpleNamespace(saga=saga, id=id, version=version)


async def test_a_commit_wakes_those_who_wait_for_a_later_version(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SagaChangeNotifier(cast(Any, None))
    monkeypatch.setattr(watch, "_poll", asyncio.Event().wait)
    waiting = asyncio.create_task(watch.changed("app", 1, 3, 30.0))
    await asyncio.sleep(0)
    watch.committed([moved(3), moved(9, id=2), moved(9, saga="order")])
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    watch.committed([moved(4)])
    async with asyncio.timeout(5):
        await waiting
    await watch.stop()
