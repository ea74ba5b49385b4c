"""Do the spans of real processes reach a receiver and the store of `dev`, and does none of that ever hold one up?"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrix.telemetry.local_store import LocalTraces
from tests.acceptance.system import Client
from tests.acceptance.test_dev import start_dev
from tests.otlp import OtlpReceiver, ReceivedSpan
from tests.processes import Processes
from tests.support import eventually, free_port

STOP_S = 2.0
"""What a process has to send its last spans."""
DEV_STOP_S = 1.0
"""What `dev` takes for the rest of its stop."""
SLACK = 3
_NO_SDK = """
import sys
sys.modules["opentelemetry.sdk"] = None
"""


def named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    """Those whose name begins like that."""
    return [one for one in spans if one.name.startswith(name)]


async def completed(api_url: str, name: str) -> int:
    """The id of an app that is COMPLETED."""
    async with Client(api_url) as client:
        app = await client.created(name)
        done = await client.completed(app["id"])
    return int(done["id"])


async def test_the_spans_of_dev_reach_the_receiver_and_the_store(
    processes: Processes, tmp_path: Path, otlp: OtlpReceiver
) -> None:
    process, dev = start_dev(processes, tmp_path, **otlp.environment(OTEL_BSP_SCHEDULE_DELAY="3600000"))
    number = await completed(dev["apiUrl"], "billing")
    node = json.loads((tmp_path / ".orchestrix" / "life.json").read_text())["nodeId"]
    assert otlp.spans() == [], "its batch is neither full nor due"
    process.terminate()
    assert await process.exited() == 0
    spans = otlp.spans()
    published = named(spans, "publish orchestrator.commands:cmd.createGitRepo")
    assert len(published) == 1
    assert {(one.service, one.instance) for one in spans} == {("orchestrix-dev", node)}
    assert published[0].attributes["saga.id"] == number
    local = LocalTraces(tmp_path / ".orchestrix" / "traces.db")
    assert local.path.stat().st_mode & 0o777 == 0o600
    trace = published[0].trace_id
    assert trace in local.traces_of("app", number)
    assert {one["spanId"] for one in local.spans(trace)} == {one.span_id for one in otlp.trace(trace)}


async def test_a_worker_and_a_node_that_join_dev_write_into_its_store(processes: Processes, tmp_path: Path) -> None:
    _, dev = start_dev(processes, tmp_path)
    node = processes.spawn("serve", "--port", str(free_port()), cwd=tmp_path)
    await node.wait_for_line('"ready"|  ready')
    local = LocalTraces(tmp_path / ".orchestrix" / "traces.db")
    number = 0

    async def both() -> bool:
        nonlocal number
        number += 1
        done = await completed(dev["apiUrl"], f"app-{number}")
        spans = [one for trace in local.traces_of("app", done) for one in local.spans(trace)]
        return {"orchestrix-dev", "orchestrix-coordinator"} <= {one["service"] for one in spans}

    await eventually(both, deadline=60, message="both nodes take part in an app")


async def test_a_receiver_that_is_away_neither_delays_nor_floods(processes: Processes, tmp_path: Path) -> None:
    process, dev = start_dev(
        processes,
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}",
        OTEL_BSP_SCHEDULE_DELAY="20",
        NO_PROXY="127.0.0.1",
    )
    for number in range(5):
        await completed(dev["apiUrl"], f"app-{number}")
    await process.wait_for_line("orchestrix.telemetry  traces: ")
    begun = time.monotonic()
    process.terminate()
    assert await process.exited() == 0
    assert time.monotonic() - begun < SLACK * (STOP_S + DEV_STOP_S)
    said = [line for line in process.log().splitlines() if "orchestrix.telemetry" in line]
    assert 2 <= len(said) <= 4, process.log()
    assert said[-1].endswith("lost since the start")
    assert all(" WARNING " in line for line in said)
    assert "Traceback" not in process.log()


async def test_a_disabled_sdk_sends_and_stores_nothing(
    processes: Processes, tmp_path: Path, otlp: OtlpReceiver
) -> None:
    process, dev = start_dev(processes, tmp_path, **otlp.environment(OTEL_SDK_DISABLED="true"))
    await completed(dev["apiUrl"], "billing")
    process.terminate()
    assert await process.exited() == 0
    assert otlp.spans() == []
    assert not (tmp_path / ".orchestrix" / "traces.db").exists()


@pytest.mark.parametrize("sends", [True, False])
async def test_without_the_sdk_all_works_and_one_line_says_what_to_install(
    sends: bool, programs: Processes, tmp_path: Path, otlp: OtlpReceiver
) -> None:
    block = tmp_path / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(_NO_SDK)
    process, dev = start_dev(programs, tmp_path, PYTHONPATH=str(block), **(otlp.environment() if sends else {}))
    await completed(dev["apiUrl"], "billing")
    process.terminate()
    assert await process.exited() == 0
    assert otlp.spans() == []
    said = process.log().count("traces are not exported: install orchestrix-sagas[otel]")
    assert said == int(sends), process.log()
    assert "Traceback" not in process.log()


async def test_a_damaged_store_is_begun_anew(processes: Processes, tmp_path: Path) -> None:
    store = tmp_path / ".orchestrix" / "traces.db"
    store.parent.mkdir(mode=0o700)
    store.write_bytes(b"this was a database once" * 1000)
    process, dev = start_dev(processes, tmp_path)
    number = await completed(dev["apiUrl"], "billing")
    await eventually(lambda: LocalTraces(store).traces_of("app", number), deadline=30, message="spans are stored")
    process.terminate()
    assert await process.exited() == 0
    assert process.log().count("traces.db.damaged") == 1
    assert "Traceback" not in process.log()


async def test_trace_shows_a_saga_of_dev_and_of_a_worker_that_joins_it(processes: Processes, tmp_path: Path) -> None:
    _, dev = start_dev(processes, tmp_path)
    worker = processes.spawn("worker", cwd=tmp_path)
    await worker.wait_for_line('"ready"|  ready')
    number = 0

    async def by_the_worker() -> dict[str, Any]:
        nonlocal number
        number += 1
        done = await completed(dev["apiUrl"], f"app-{number}")

        async def whole() -> dict[str, Any] | None:
            found = await processes.run_async("trace", f"app-{number}", "-o", "json", cwd=tmp_path)
            assert found.returncode == 0, found.stderr
            answer: dict[str, Any] = json.loads(found.stdout)
            spans = answer["traces"][0]["spans"]
            return answer if [one for one in spans if one["attributes"].get("saga.state.to") == "COMPLETED"] else None

        answer = await eventually(whole, deadline=30, message="all spans are stored")
        assert answer is not None
        assert answer["id"] == done
        return answer if any("orchestrix-worker" in str(one) for one in answer["traces"]) else {}

    answer = await eventually(by_the_worker, deadline=60, message="the worker takes part in an app")
    (trace,) = answer["traces"]
    ids = {one["spanId"] for one in trace["spans"]}
    assert [one["name"] for one in trace["spans"] if one["parentSpanId"] not in ids] == ["POST /apps"]
    shown = await processes.run_async("trace", f"app-{number}", cwd=tmp_path, env={"COLUMNS": "200"})
    lines = shown.stdout.splitlines()
    assert lines[0] == f"app {answer['id']}  app-{number}  COMPLETED"
    assert lines[3] == f"trace {trace['traceId']}"
    assert len(lines) == 4 + len(trace["spans"])
    for wanted in ("POST /apps", "publish cmd.createGitRepo", "process evt.appRegistered", "[worker ", "[dev "):
        assert wanted in shown.stdout, shown.stdout
    missing = await processes.run_async("trace", "nobody", cwd=tmp_path)
    assert missing.returncode != 0
    assert "no app named 'nobody'" in missing.stderr


async def test_trace_without_the_sdk_says_what_to_install(programs: Processes, tmp_path: Path) -> None:
    block = tmp_path / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(_NO_SDK)
    _, dev = start_dev(programs, tmp_path, PYTHONPATH=str(block))
    await completed(dev["apiUrl"], "billing")
    shown = await programs.run_async("trace", "billing", cwd=tmp_path)
    assert shown.returncode != 0
    assert "orchestrix-sagas[otel]" in shown.stderr
