"""What can the tests of the worker ask for?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from orchestrix import clock
from tests.fakes.broker import FakeBroker
from tests.fakes.rows import Rows
from tests.fakes.time import Shifted

from .rig import Rig


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """The rows that the state guard sees."""
    rows = Rows()
    monkeypatch.setattr("orchestrix.worker.commands.state_guard.guard", rows.guard)
    monkeypatch.setattr("orchestrix.persistence.sagas.redelivered_commands.put", rows.note)
    monkeypatch.setattr("orchestrix.persistence.sagas.redelivered_commands.of_command", rows.noted)
    return rows


@pytest.fixture
async def rig(rows: Rows, time: Shifted, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A worker to be started by the test, stopped at its end."""
    monkeypatch.setattr("orchestrix.worker.commands.admission.EARLY_RECHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr("orchestrix.worker.commands.reporter.POLL_INTERVAL_S", 0.02)
    rig = Rig(FakeBroker(), rows)
    yield rig
    if rig.worker is not None:
        await rig.worker.stop()


@pytest.fixture
def time() -> Iterator[Shifted]:
    """A clock that the test can put forward."""
    source = Shifted()
    with clock.use(source):
        yield source
