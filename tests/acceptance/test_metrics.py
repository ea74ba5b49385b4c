"""Do metrics and traces of one system say the same: to a client that scrapes, and to an OTLP receiver?"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import pytest

from tests.acceptance.system import Client, System
from tests.integration.metrics.situations import samples
from tests.otlp import OtlpReceiver
from tests.servers.tools import PROMTOOL
from tests.support import eventually

APPS: Final = 20
OPEN_METRICS: Final = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
_EXEMPLAR: Final = re.compile(
    r'^saga_step_duration_seconds_bucket\{.*\} \d+ # \{trace_id="([0-9a-f]{32})"', re.MULTILINE
)
PROCESSED: Final = "messaging.process.duration"


def handled(otlp: OtlpReceiver) -> dict[str, int]:
    """How many commands each worker process has handled, by what it sent last."""
    found: dict[str, int] = {}
    for metric in otlp.metrics(PROCESSED):
        if metric.service == "orchestrix-worker":
            found[str(metric.instance)] = sum(count for _, (count, _) in metric.points)
    return found


@pytest.mark.req("DC-8", "S1-53")
async def test_an_http_client_two_workers_and_a_receiver_of_traces_and_metrics(
    system: System, otlp: OtlpReceiver
) -> None:
    env = otlp.environment()
    _, url = system.node(port=None, **env)
    await system.ready(url)
    for number in range(2):
        worker = system.worker("--concurrency", "1", **{"ORCHESTRIX_NODE_ID": f"w-{number}", **env})
        await worker.wait_for_line("ready")
    names = [f"app-{number}" for number in range(APPS)]
    async with Client(url) as client:
        apps = await asyncio.gather(*(client.created(name) for name in names))
        await system.all_ended(names, deadline=60)
        traces = {app["traceId"] for app in apps}
        assert len(traces) == APPS

        await eventually(lambda: sum(handled(otlp).values()) == 2 * APPS, deadline=30, message="metrics come")
        assert len(handled(otlp)) == 2, "both worker processes took part, and each says so itself"
        assert all(handled(otlp).values())

        async def scraped() -> str:
            return str((await client.http.get("/metrics", headers=OPEN_METRICS)).text)

        completed = 'saga_completed_total{saga="app",outcome="completed"}'
        text = await scraped()
        assert samples(re.sub(r" # \{.*", "", text))[completed] == APPS, "a scrape counts what the client has started"
        exemplars = set(_EXEMPLAR.findall(text))
        assert exemplars, "a histogram leads to traces"
        assert exemplars <= traces
        await otlp.wait_for(lambda spans: exemplars <= {one.trace_id for one in spans})
        plain = await client.http.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        checked = PROMTOOL.run("check", "metrics", text=plain.text)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    labels = {"saga": "app", "outcome": "completed"}
    sent = [value for one in otlp.metrics("saga.completed") for point, value in one.points if dict(point) == labels]
    assert sent[-1] == APPS, "the receiver gets the same number"
    for trace in exemplars:
        services = {one.service for one in otlp.trace(trace)}
        assert services == {"orchestrix-coordinator", "orchestrix-worker"}
