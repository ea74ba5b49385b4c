"""Is a node with fifty sagas, and whatever its users name, a load that Prometheus bears?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from orchestrix import clock
from orchestrix.api.traces.server_span import METHODS, OTHER_METHOD
from orchestrix.outbox import saga_log, saga_metrics
from orchestrix.saga import changes
from orchestrix.saga.definition import COMPLETED, CREATED
from orchestrix.saga.state import Instance, StateChange
from orchestrix.saga.steps import COMPENSATING
from orchestrix.telemetry.metrics import catalogue
from orchestrix.telemetry.metrics.catalogue import CATALOGUE
from orchestrix.telemetry.metrics.definitions import Kind
from orchestrix.telemetry.metrics.exposition import render
from orchestrix.telemetry.metrics.instruments import NAME_LIMIT, OTHER, SERIES_LIMIT, Registry
from orchestrix.telemetry.trace_context import TraceContext
from tests.integration.metrics import situations
from tests.unit.orchestration.test_saga_log import BEFORE, ROW

SAGAS, STEPS = 50, 4
STATUSES: Final = [str(one) for one in (200, 400, 401, 403, 404, 405, 409, 413, 421, 422, 429, 431, 499, 500, 503)]
CONTEXT: Final = TraceContext(f"00-{'d' * 32}-{'1' * 16}-01")


def series(registry: Registry) -> list[str]:
    """The series of a scrape."""
    text = render("", registry)[1].decode()
    return [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A process in which nothing was counted yet."""
    made = Registry()
    of = {
        "_started": made.counter(catalogue.SAGA_STARTED),
        "_completed": made.counter(catalogue.SAGA_COMPLETED),
        "_duration": made.histogram(catalogue.SAGA_DURATION),
        "_step": made.histogram(catalogue.SAGA_STEP_DURATION),
        "_retries": made.counter(catalogue.SAGA_STEP_RETRIES),
        "_compensations": made.counter(catalogue.SAGA_COMPENSATIONS),
        "_ignored": made.counter(catalogue.EVENTS_IGNORED),
    }
    for name, instrument_of in of.items():
        monkeypatch.setattr(saga_metrics, name, instrument_of)
    return made


def moved(after: Instance, *history: StateChange) -> Any:
    """What has become of an instance."""
    return SimpleNamespace(instance=after, history=history)


def life(saga: str) -> None:
    """A whole saga: each step fails once, then succeeds, then is undone."""
    live = replace(BEFORE, saga=saga)
    saga_log.changed(None, moved(live, replace(ROW, kind=CREATED, step=None)))
    for number in range(STEPS):
        for kind in (changes.ATTEMPT_FAILED, changes.STEP_SUCCEEDED, changes.STEP_UNDONE):
            row = replace(ROW, kind=kind, step=f"{saga}-step-{number}", at=clock.now())
            saga_log.changed(live, moved(live, row), context=CONTEXT)
    undone = replace(ROW, kind=changes.STEP_FAILED, step=f"{saga}-step-0", to_state=COMPENSATING)
    saga_log.changed(live, moved(replace(live, state=COMPENSATING), undone), context=CONTEXT)
    for state in (COMPLETED, "FAILED"):
        ended = replace(live, state=state, wake_at=None, wake_reason=None)
        saga_log.changed(live, moved(ended, replace(ROW, kind=None, step=None)), context=CONTEXT)


def all_else(registry: Registry, names: int) -> None:
    """Every other metric with as many names of users' as that."""
    for metric in CATALOGUE:
        if metric.name.startswith("saga.") and metric.kind is not Kind.GAUGE:
            continue
        own = [label for label in metric.labels if not label.given]
        for number in range(names if any(label.given for label in metric.labels) else 1):
            labels = [f"{label.key}-{number}" if label.given else "x" for label in metric.labels]
            for value in ("x", "y", "z") if own else ("",):
                shown = [value if one == "x" else one for one in labels]
                if metric.kind is Kind.COUNTER:
                    registry.counter(metric).at(*shown).add()
                elif metric.kind is Kind.GAUGE:
                    registry.gauge(metric).at(*shown).set(1)
                else:
                    registry.histogram(metric).at(*shown).record(0.1, CONTEXT)


def test_fifty_sagas_are_at_most_two_thousand_series(registry: Registry) -> None:
    saga_metrics.begin(f"saga-{number}" for number in range(SAGAS))
    for number in range(SAGAS):
        life(f"saga-{number}")
    all_else(registry, 200)
    found = series(registry)
    assert len(found) == len(set(found))
    assert len(found) <= SERIES_LIMIT
    sagas = {one for one in found if one.startswith("saga_started_total")}
    assert len(sagas) == SAGAS, "each of them is seen"
    assert len([one for one in found if one.startswith("saga_duration_seconds_count")]) == SAGAS
    assert any(OTHER in one for one in found), "what came later is other"


def ends(*sagas: str) -> dict[tuple[str, str], int]:
    """No end of these sagas yet."""
    return {(saga, outcome): 0 for saga in sagas for outcome in (catalogue.COMPLETED, catalogue.FAILED)}


async def test_a_node_shows_that_no_saga_has_ended_before_any_is_started(registry: Registry, tmp_path: Path) -> None:
    async with situations.running(tmp_path) as (_, client):
        shown = situations.samples((await client.get("/metrics")).text)
        assert shown, "it can be scraped"
        assert registry.values(catalogue.SAGA_STARTED) == {}
        assert registry.values(catalogue.SAGA_COMPLETED) == ends("app")


def test_a_saga_that_was_not_known_at_the_begin_shows_no_end_from_its_start_on(registry: Registry) -> None:
    saga_metrics.begin(["known"])
    created = replace(ROW, kind=CREATED, step=None)
    saga_log.changed(None, moved(replace(BEFORE, saga="stored"), created))
    assert registry.values(catalogue.SAGA_COMPLETED) == ends("known", "stored")


def test_sagas_that_are_not_started_take_no_names_from_those_that_are(registry: Registry) -> None:
    saga_metrics.begin(f"idle-{number}" for number in range(NAME_LIMIT + 1))
    assert registry.values(catalogue.SAGA_COMPLETED) == ends(OTHER)
    life("busy")
    found = registry.values(catalogue.SAGA_COMPLETED)
    assert found == ends(OTHER) | {("busy", catalogue.COMPLETED): 1, ("busy", catalogue.FAILED): 1}


def test_nothing_that_is_counted_is_lost_by_the_limits(registry: Registry) -> None:
    for number in range(4 * SAGAS):
        life(f"saga-{number}")
    steps = registry.values(catalogue.SAGA_STEP_DURATION)
    assert sum(sum(one.counts) for one in steps.values()) == 4 * SAGAS * (3 * STEPS + 1)
    assert sum(registry.values(catalogue.SAGA_STARTED).values()) == 4 * SAGAS
    assert len(series(registry)) <= SERIES_LIMIT


def test_whatever_strangers_ask_of_the_api_the_limit_holds_and_errors_are_seen(registry: Registry) -> None:
    for number in range(4 * SAGAS):
        life(f"saga-{number}")
    all_else(registry, 200)
    requests = registry.histogram(catalogue.HTTP_DURATION)
    for method, route, status in product([*METHODS, OTHER_METHOD], range(20), STATUSES):
        requests.at(method, f"/route-{route}", status).record(0.1)
    assert len(series(registry)) <= SERIES_LIMIT
    assert {status for _, _, status in requests.values()} >= set(STATUSES), "an alert asks for those of 5xx"


def test_no_label_is_an_id() -> None:
    words = {word for metric in CATALOGUE for label in metric.labels for word in label.prometheus.split("_")}
    assert not words & {"id", "uuid", "key", "correlation", "instance", "job", "worker", "node"}
