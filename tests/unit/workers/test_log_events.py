"""Which event does a line of a worker name, and can it be found by the correlation id and the span of its command?"""

from __future__ import annotations

import pytest

from orchestrix import Command, Context, Permanent
from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.telemetry import log_events
from orchestrix.worker.handlers import Handler
from orchestrix.worker.heartbeat import ProcessIdentity
from tests.support import logged
from tests.tracing import RecordedSpans, context_of

from .rig import FAILED, Rig
from .test_spans import MESSAGE_ID, PARENT, PROCESS, UNSAMPLED, raising
from .test_worker import make

pytestmark = pytest.mark.virtual_time

CONFIRMED = Published(Outcome.CONFIRMED)


async def unsendable(context: Context, command: Command) -> object:
    """Returns what is no JSON."""
    return {"made": {1, 2}}


@pytest.mark.parametrize(
    ("handler", "error_type", "level"),
    [
        (raising(Permanent("NameTaken", "it is")), "NameTaken", "WARNING"),
        (raising(LookupError("a bug")), "LookupError", "ERROR"),
        (unsendable, "BadOutput", "ERROR"),
    ],
)
async def test_a_handler_that_fails(
    handler: Handler, error_type: str, level: str, rig: Rig, spans: RecordedSpans, caplog: pytest.LogCaptureFixture
) -> None:
    rig.process = ProcessIdentity("worker-7", "host", "1.0")
    await rig.start(handler)
    rig.send(1, headers=PARENT.headers, message_id=MESSAGE_ID)
    await rig.settled()
    (found,) = logged(caplog, log_events.HANDLER_FAILED)
    span = context_of(spans.one(PROCESS))
    assert found.pop("ms") >= 0
    assert found == {
        "event": "worker.handler.failed", "level": level, "correlation_id": "c-1", "saga": "app", "app_id": 1,
        "step": "createGitRepo", "try": 1, "worker": "worker-7", "error_type": error_type, **span.log_fields,
    }  # fmt: skip
    assert span.trace_id == PARENT.trace_id


async def test_a_command_whose_trace_is_not_kept_names_the_span_that_it_came_with(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.start(raising(LookupError("a bug")))
    rig.send(1, headers=UNSAMPLED.headers)
    await rig.settled()
    (found,) = logged(caplog, log_events.HANDLER_FAILED)
    assert found["trace_id"] == UNSAMPLED.trace_id
    assert found["trace_flags"] == "00"


async def test_a_command_that_has_ended_its_workers(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.start(make)
    rig.send(1, headers={"x-deaths": 10, "x-alone": 1}, count=1)
    await rig.settled()
    (found,) = logged(caplog, log_events.HANDLER_FAILED)
    assert (found["error_type"], found["correlation_id"], "ms" in found) == ("WorkerCrashed", "c-1", False)


async def test_a_report_that_the_broker_rejects(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def judge(message: Outgoing) -> Published:
        return CONFIRMED if message.routing_key == FAILED else Published(Outcome.REFUSED, "too large")

    rig.broker.judge = judge
    await rig.start(make)
    rig.send(1)
    await rig.settled()
    assert len(logged(caplog, log_events.REPORT_REJECTED)) == 1
