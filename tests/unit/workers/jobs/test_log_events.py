"""Which event does a line of a worker's job name, and what does it say of the job?"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrix import JobContext
from orchestrix.telemetry import log_events
from tests.support import logged

from .house import House


def test_a_job_that_fails(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(context: JobContext) -> None:
        raise LookupError("a bug")

    async def days() -> None:
        await house.open(breaks=breaks)
        house.send("breaks")
        await house.ended()

    house.play(days())
    (found,) = logged(caplog, log_events.HANDLER_FAILED)
    kept: dict[str, Any] = {name: found[name] for name in ("handler", "try", "error_type", "level")}
    assert kept == {"handler": "breaks", "try": 1, "error_type": "LookupError", "level": "ERROR"}
    assert {"correlation_id", "job_id", "history_id", "ms"} <= found.keys()
