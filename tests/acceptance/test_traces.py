"""Is a saga one trace, as an OTLP receiver sees it, whatever happens to its processes?"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pika
import pytest

from tests.acceptance.plain_pika import EVENTS, PikaWorker
from tests.acceptance.system import Client, System
from tests.otlp import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.processes import Process
from tests.support import eventually

QUICK: Final = {
    "ORCHESTRIX_CLUSTER__LEASE": "4",
    "ORCHESTRIX_CLUSTER__RENEW": "1",
    "ORCHESTRIX_CLUSTER__HEARTBEAT": "1",
    "ORCHESTRIX_CLUSTER__DEAD": "4",
    "ORCHESTRIX_CLUSTER__PRESENCE": "0.5",
}
VOYAGE: Final = '''
"""A saga with a step that fails once, a step whose first worker is killed, and a step that is a job."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from orchestrix import COMPLETED, Job, NothingToUndo, RetryPolicy, Saga, Step, Transient, handles, job

NOTHING = NothingToUndo("it leaves nothing")
VOYAGE = Saga(
    name="voyage",
    steps=(
        Step(name="flaky", state="FLAKY", command="cmd.flaky", event="evt.flaky", then="SLOW", undo=NOTHING,
             retry=RetryPolicy(attempts=3, base=timedelta(milliseconds=100))),
        Step(name="slow", state="SLOW", command="cmd.slow", event="evt.slow", then="BUILDING", undo=NOTHING),
        Step(name="build", state="BUILDING", job=Job("build", queue="builders"), event="evt.built", then=COMPLETED,
             undo=NOTHING),
    ),
)
FOLDER = Path(__file__).parent


@handles("cmd.flaky")
def flaky(context, command):
    if command.attempt == 1:
        raise Transient("NotYet", "the first try fails")


@handles("cmd.slow")
async def slow(context, command):
    mark = FOLDER / f"slow-{command.app_id}"
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        await asyncio.sleep(600)
    context.span.set_attribute("voyage.note", "set by the handler")


@job("build", queue="builders")
async def build(context):
    await context.log("built")
    return {}
'''
TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def otlp() -> Iterator[OtlpReceiver]:
    """A receiver of spans."""
    with otlp_receiver() as receiver:
        yield receiver


class CopyingWorker(PikaWorker):
    """Publishes the success with the headers of the command, which is all that a worker has to do for traces."""

    def __init__(self, url: str) -> None:
        super().__init__(url, self.succeed)

    def succeed(self, channel: Any, command: dict[str, Any]) -> None:
        """Copies what the last command came with."""
        event = {key: command[key] for key in ("appId", "correlationId")} | {"causationId": command["id"]}
        properties = pika.BasicProperties(headers=dict(self.properties[-1].headers))  # type: ignore[no-untyped-call]
        channel.basic_publish("orchestrator.events", EVENTS[command["type"]], json.dumps(event).encode(), properties)


def is_tree(spans: Iterable[ReceivedSpan], roots: Iterable[str | None]) -> bool:
    """Whether each of them has its parent among them, but for one whose parent is one of `roots`.

    Reports of a start are left out: they may be below the span of a worker that was killed, which is lost.
    """
    found = [one for one in spans if not one.name.endswith("evt.stepStarted")]
    ids = {one.span_id for one in found}
    tops = [one for one in found if one.parent_id not in ids]
    return len(tops) == 1 and tops[0].parent_id in set(roots)


def names(spans: Iterable[ReceivedSpan]) -> list[str]:
    """Their names, in the order of their starts."""
    return [one.name for one in spans]


async def complete_tree(otlp: OtlpReceiver, trace_id: str, root: str | None, last: str) -> list[ReceivedSpan]:
    """The trace, once it has a span called `last` and is one tree under `root`."""

    def whole(_: list[ReceivedSpan]) -> bool:
        found = otlp.trace(trace_id)
        return last in names(found) and is_tree(found, [root])

    try:
        await otlp.wait_for(whole, deadline=30)
    except AssertionError:
        told = [f"{one.parent_id} > {one.span_id} {one.name} {one.service}" for one in otlp.trace(trace_id)]
        raise AssertionError("\n".join(told)) from None
    return otlp.trace(trace_id)


async def leader(url: str) -> str:
    """The id of the node that leads."""
    async with Client(url) as client:

        async def led() -> Any:
            return (await client.http.get("/cluster")).json().get("leader")

        found = await eventually(led, deadline=30)
    return str(found["nodeId"] if isinstance(found, dict) else found)


@pytest.mark.req("X-5", "DC-8")
async def test_one_trace_over_a_retry_a_killed_worker_and_a_change_of_leader(
    system: System, otlp: OtlpReceiver
) -> None:
    (system.folder / "voyage.py").write_text(VOYAGE)
    env = {
        **QUICK,
        **otlp.environment(),
        "ORCHESTRIX_SAGAS": "voyage",
        "ORCHESTRIX_WORKERS": "voyage",
        "PYTHONPATH": str(system.folder),
    }
    running: dict[str, tuple[Process, str]] = {}
    for name in ("ada", "bob"):
        running[name] = system.node(port=None, **{"ORCHESTRIX_NODE_ID": name, **env})
        await system.ready(running[name][1])
    workers = [system.worker(**{"ORCHESTRIX_NODE_ID": f"w-{number}", **env}) for number in range(2)]
    for worker in workers:
        await worker.wait_for_line("ready")

    first = await leader(running["bob"][1])
    leads = first.rpartition("-")[0]
    stays = next(name for name in running if name != leads)
    async with Client(running[stays][1]) as client:
        headers = {"traceparent": TRACEPARENT, "X-Correlation-ID": "c-voyage"}
        wanted = {"key": "one", "createdBy": "ada"}
        answer = await client.http.post("/sagas/voyage", json=wanted, headers=headers)
        assert answer.status_code == 200, answer.text
        saga = answer.json()
        assert (saga["traceId"], answer.headers["X-Trace-Id"]) == (TRACEPARENT[3:35], TRACEPARENT[3:35])
        mark = system.folder / f"slow-{saga['id']}"
        await eventually(mark.exists, deadline=30, message="a worker is at the slow step")
        # What a process that is killed has not sent is lost with it.
        await complete_tree(otlp, TRACEPARENT[3:35], TRACEPARENT[36:52], "publish orchestrator.commands:cmd.slow")
        killed = next(one for one in workers if one.pid == int(mark.read_text()))
        running[leads][0].kill9()
        await eventually(lambda: _leads_another(running[stays][1], first), deadline=30, message="another leads")
        killed.kill9()

        async def done() -> bool:
            state: str = (await client.http.get(f"/sagas/voyage/{saga['id']}")).json()["state"]
            return state == "COMPLETED"

        await eventually(done, deadline=60)
        history = (await client.http.get(f"/sagas/voyage/{saga['id']}/history")).json()["items"]
    assert {row["traceId"] for row in history} == {TRACEPARENT[3:35]}

    last = "process orchestrator.events:evt.built"
    trace = await complete_tree(otlp, TRACEPARENT[3:35], TRACEPARENT[36:52], last)
    of = {one.span_id: one for one in trace}
    flaky = [one for one in trace if one.name == "publish orchestrator.commands:cmd.flaky"]
    [timer] = [one for one in trace if one.name == "timer retry"]
    assert [(link.kind, link.span_id) for link in timer.links] == [("retry", flaky[0].span_id)]
    assert flaky[1].parent_id == timer.span_id
    [slow] = [one for one in trace if one.name == "publish orchestrator.commands:cmd.slow"]
    worked = [one for one in trace if one.name == "process orchestrator.commands:cmd.slow"]
    assert [one.parent_id for one in worked] == [slow.span_id], "the killed worker's span is lost with it"
    assert worked[0].attributes["orchestrix.redelivered"] is True
    assert ("retry", slow.span_id) in [(link.kind, link.span_id) for link in worked[0].links]
    assert worked[0].attributes["voyage.note"] == "set by the handler"
    [dispatch] = [one for one in trace if one.name == "dispatch job"]
    assert str(dispatch.instance).startswith(stays), "the next leader has dispatched it"
    assert of[str(dispatch.parent_id)].name == "process orchestrator.events:evt.slow"
    assert any(
        one.name.startswith("process ") and one.attributes.get("orchestrix.job.handler") == "build" for one in trace
    )
    assert {one.service for one in trace} == {"orchestrix-coordinator", "orchestrix-worker"}
    of_saga = [
        one for one in trace if one.name.endswith(("cmd.flaky", "cmd.slow", "evt.flaky", "evt.slow", "evt.built"))
    ]
    assert {one.attributes.get("orchestrix.correlation_id") for one in of_saga} == {"c-voyage"}


async def _leads_another(url: str, first: str) -> bool:
    return await leader(url) != first


@pytest.mark.req("DC-8")
async def test_100_sagas_at_once_are_100_trees(system: System, otlp: OtlpReceiver) -> None:
    env = otlp.environment(OTEL_BSP_MAX_QUEUE_SIZE="20000")
    _, url = system.node(port=None, **env)
    await system.ready(url)
    await system.worker(**env).wait_for_line("ready")
    apps = [f"tree-{number}" for number in range(100)]
    async with Client(url) as client:
        answers = await asyncio.gather(*(client.created(name) for name in apps))
        await system.all_ended(apps, deadline=60)
    traces = {answer["traceId"]: answer["id"] for answer in answers}
    assert len(traces) == 100, "each client's request began its own"
    last = "process orchestrator.events:evt.appRegistered"

    def all_there(spans: list[ReceivedSpan]) -> bool:
        ended = {one.trace_id for one in spans if one.name == last}
        return traces.keys() <= ended

    await otlp.wait_for(all_there, deadline=60)
    await asyncio.gather(*(complete_tree(otlp, trace, None, last) for trace in traces))
    for trace, app_id in traces.items():
        found = {one.attributes["saga.id"] for one in otlp.trace(trace) if "saga.id" in one.attributes}
        assert found == {app_id}, "no tree has anything of another saga"


async def test_an_unsampled_client_is_exported_by_nobody_and_known_to_the_last_service(
    system: System, otlp: OtlpReceiver
) -> None:
    """The third service, which knows nothing but the contract, has the client's trace id and flags."""
    _, url = system.node(port=None, **otlp.environment())
    await system.ready(url)
    unsampled = TRACEPARENT[:-2] + "00"
    with CopyingWorker(system.broker_url) as worker:
        async with Client(url) as client:
            body = {"appName": "quiet", "createdBy": "ada"}
            headers = {"traceparent": unsampled, "tracestate": "vendor=1"}
            app = (await client.http.post("/apps", json=body, headers=headers)).json()
            await client.completed(app["id"])
        seen = [properties.headers for properties in worker.properties]
    assert [(one["traceparent"], one["tracestate"]) for one in seen] == [(unsampled, "vendor=1")] * 2
    assert app["traceId"] == TRACEPARENT[3:35]
    # The receiver works: another request of the same node comes there.
    async with Client(url) as client:
        await client.http.get("/apps", headers={"traceparent": TRACEPARENT.replace("4bf9", "4bf8")})
    await otlp.wait_for(lambda spans: any(one.trace_id.startswith("4bf8") for one in spans))
    assert otlp.trace(TRACEPARENT[3:35]) == []


async def test_a_foreign_worker_that_only_copies_headers_keeps_the_tree_whole(
    system: System, otlp: OtlpReceiver
) -> None:
    _, url = system.node(port=None, **otlp.environment())
    await system.ready(url)
    with CopyingWorker(system.broker_url):
        async with Client(url) as client:
            app = await client.created("foreign")
            await client.completed(app["id"])
    trace = await complete_tree(otlp, app["traceId"], None, "process orchestrator.events:evt.appRegistered")
    of = {one.span_id: one for one in trace}
    handled = next(one for one in trace if one.name == "process orchestrator.events:evt.gitRepoCreated")
    assert of[str(handled.parent_id)].name == "publish orchestrator.commands:cmd.createGitRepo"
    assert trace[0].name == "POST /apps"
    assert trace[0].kind == "SERVER"


@pytest.mark.req("S3-44")
async def test_every_answer_and_row_has_the_correlation_and_the_trace(system: System, otlp: OtlpReceiver) -> None:
    """Commands, events and their spans name the correlation id, and so does each row of history."""
    _, url = system.node(port=None, **otlp.environment())
    await system.ready(url)
    await system.worker(**otlp.environment()).wait_for_line("ready")
    async with Client(url) as client:
        body = {"appName": "marked", "createdBy": "ada"}
        app = (await client.http.post("/apps", json=body, headers={"X-Correlation-ID": "c-marked"})).json()
        await client.completed(app["id"])
        history = await client.history(app["id"])
        why = (await client.http.get(f"/apps/{app['id']}/why")).json()
        missing = await client.http.get("/apps/999999")
    assert {(row["correlationId"], row["traceId"]) for row in history} == {("c-marked", app["traceId"])}
    assert why["traceId"] == app["traceId"]
    assert re.fullmatch("[0-9a-f]{32}", missing.json()["traceId"]), "a problem names its own trace"
    assert missing.headers["X-Trace-Id"] == missing.json()["traceId"] != app["traceId"]
    trace = await complete_tree(otlp, app["traceId"], None, "process orchestrator.events:evt.appRegistered")
    assert {one.attributes.get("orchestrix.correlation_id") for one in trace if one.name != "commit"} == {"c-marked"}
