"""Dashboard: the panels of Grafana, made from the catalogue."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from orchestrix.telemetry.metrics import catalogue as metrics
from orchestrix.telemetry.metrics.definitions import Kind, Label, Metric, ReportedBy

WIDTH, HEIGHT, COLUMNS = 8, 8, 3
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WINDOW: Final = "$__rate_interval"


class Panel(NamedTuple):
    """What is shown of a metric; `by` are its labels that are told apart, all of them by default."""

    metric: Metric
    by: tuple[Label, ...] | None = None


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Sagas": (
        Panel(metrics.SAGA_STARTED),
        Panel(metrics.SAGA_COMPLETED),
        Panel(metrics.SAGA_DURATION),
        Panel(metrics.SAGA_ACTIVE),
        Panel(metrics.SAGA_STUCK),
        Panel(metrics.SAGA_STEP_DURATION, (metrics.SAGA, metrics.STEP)),
        Panel(metrics.SAGA_STEP_RETRIES),
        Panel(metrics.SAGA_COMPENSATIONS),
        Panel(metrics.SAGA_TIMERS_LATE),
    ),
    "Queues": (
        Panel(metrics.OUTBOX_WAIT),
        Panel(metrics.OUTBOX_PENDING),
        Panel(metrics.OUTBOX_AGE),
        Panel(metrics.COMMAND_CONSUMERS),
        Panel(metrics.COMMAND_MESSAGES),
        Panel(metrics.DEAD_LETTERS),
        Panel(metrics.DEAD_LETTERED),
        Panel(metrics.EVENTS_IGNORED),
        Panel(metrics.PROCESS_DURATION, (metrics.DESTINATION,)),
        Panel(metrics.OPERATION_DURATION),
        Panel(metrics.SENT_MESSAGES),
        Panel(metrics.CONSUMED_MESSAGES),
    ),
    "Cluster": (
        Panel(metrics.IS_LEADER),
        Panel(metrics.LEASE_REMAINING),
        Panel(metrics.NODES),
        Panel(metrics.NODES_DIED),
        Panel(metrics.JOBS_OWNED),
        Panel(metrics.HANDOFFS),
        Panel(metrics.BROKER_LINKS),
        Panel(metrics.BROKER_BLOCKED),
        Panel(metrics.POOL_CONNECTIONS),
        Panel(metrics.POOL_LIMIT),
        Panel(metrics.LOG_LINES_LOST),
        Panel(metrics.INFO),
    ),
    "Registry and shards": (
        Panel(metrics.EXECUTORS),
        Panel(metrics.REGISTERED),
        Panel(metrics.SHARDS_ASSIGNED),
        Panel(metrics.SHARDS_UNOWNED),
        Panel(metrics.SHARD_GENERATION),
        Panel(metrics.SHARD_GENERATIONS),
        Panel(metrics.SHARD_REBALANCES),
        Panel(metrics.SHARD_CLIENT_MESSAGES),
        Panel(metrics.SHARD_CLIENT_REFUSED),
        Panel(metrics.SHARD_CLIENT_ANSWERS),
    ),
    "API": (
        Panel(metrics.HTTP_DURATION, (metrics.METHOD, metrics.ROUTE)),
        Panel(metrics.HTTP_ACTIVE),
    ),
}


def query(panel: Panel) -> str:
    """What a panel asks Prometheus."""
    metric = panel.metric
    labels = [label.prometheus for label in (metric.labels if panel.by is None else panel.by)]
    if metric.kind is Kind.HISTOGRAM:
        group = ", ".join(["le", *labels])
        return f"histogram_quantile(0.99, sum by ({group}) (rate({metric.sample}_bucket[{WINDOW}])))"
    function = "max" if metric.reported_by is ReportedBy.EVERY_NODE or metric.unit == "s" else "sum"
    group = f" by ({', '.join(labels)})" if labels else ""
    inner = f"rate({metric.sample}[{WINDOW}])" if metric.kind is Kind.COUNTER else metric.sample
    return f"{function}{group} ({inner})"


def dashboard() -> str:
    """The dashboard, for Grafana's import."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(_row(title, top, len(panels)))
        top += 1
        for place, panel in enumerate(row):
            at = (place % COLUMNS * WIDTH, top + place // COLUMNS * HEIGHT)
            panels.append(_panel(panel, at, len(panels)))
        top += -(-len(row) // COLUMNS) * HEIGHT
    found = {
        "title": "Orchestrix",
        "uid": "orchestrix",
        "description": "Made from the catalogue of metrics by `python -m tests.documents`.",
        "schemaVersion": 39,
        "tags": ["orchestrix"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_SOURCE_VARIABLE, _TRACES_VARIABLE]},
        "panels": panels,
    }
    return json.dumps(found, indent=2) + "\n"


_SOURCE_VARIABLE: Final = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
_TRACES_VARIABLE: Final = {"name": "traces", "label": "Traces", "type": "datasource", "query": "tempo"}


def _row(title: str, top: int, number: int) -> dict[str, Any]:
    return {"id": number + 1, "type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}}


def _panel(panel: Panel, at: tuple[int, int], number: int) -> dict[str, Any]:
    metric = panel.metric
    quantile = ", 99th percentile" if metric.kind is Kind.HISTOGRAM else ""
    each = ", per second" if metric.kind is Kind.COUNTER else ""
    labels = metric.labels if panel.by is None else panel.by
    target = {
        "refId": "A",
        "datasource": SOURCE,
        "expr": query(panel),
        "legendFormat": " ".join(f"{{{{{label.prometheus}}}}}" for label in labels) or metric.name,
        "exemplar": metric.kind is Kind.HISTOGRAM,
    }
    defaults: dict[str, Any] = {"unit": "s" if metric.unit == "s" else "short", "min": 0}
    if metric.kind is Kind.HISTOGRAM:
        defaults["links"] = [{"title": "Trace of this exemplar", "targetBlank": True, "url": _TRACE_LINK}]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": f"{metric.name}{quantile}{each}",
        "description": metric.help,
        "datasource": SOURCE,
        "gridPos": {"x": at[0], "y": at[1], "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [target],
    }


_EXPLORED: Final = (
    '{"datasource":"${traces}","queries":[{"query":"${__data.fields.trace_id}","queryType":"traceql"}],'
    '"range":{"from":"now-1h","to":"now"}}'
)
_TRACE_LINK: Final = f"/explore?left={_EXPLORED}"


def datasources() -> str:
    """A provisioning file for Grafana: where it finds Prometheus, and to which traces its exemplars lead."""
    return """\
# Data sources for Grafana. Made by `python -m tests.documents`. Change the two addresses.
apiVersion: 1
datasources:
  - name: Prometheus
    uid: prometheus
    type: prometheus
    url: http://localhost:9090
    jsonData:
      httpMethod: POST
      exemplarTraceIdDestinations:
        - {name: trace_id, datasourceUid: tempo}
  - name: Tempo
    uid: tempo
    type: tempo
    url: http://localhost:3200
"""
