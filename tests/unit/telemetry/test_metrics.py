"""Do instruments count, keep to their limits, and appear in a scrape as Prometheus reads it?"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from orchestrix.telemetry.metrics.cells import Distribution
from orchestrix.telemetry.metrics.definitions import Kind, Label, Metric
from orchestrix.telemetry.metrics.exposition import OPEN_METRICS_TYPE, TEXT_TYPE, render
from orchestrix.telemetry.metrics.instruments import NAME_LIMIT, OTHER, Registry, SeriesLimit
from orchestrix.telemetry.trace_context import TraceContext

SAGA, OUTCOME = Label("saga", given=True), Label("the.outcome")
ENDED = Metric(name="saga.ended", kind=Kind.COUNTER, unit="{saga}", help='Sagas that "ended".', labels=(SAGA, OUTCOME))
FREE = Metric(name="slots.free", kind=Kind.GAUGE, unit="{slot}", help="Free.")
TOOK = Metric(name="saga.took", kind=Kind.HISTOGRAM, unit="s", help="Time.", labels=(SAGA,), buckets=(0.5, 1.0))
KEPT = TraceContext(f"00-{'a' * 32}-{'1' * 16}-03")
NOT_KEPT = TraceContext(f"00-{'b' * 32}-{'2' * 16}-02")


@pytest.fixture
def registry() -> Registry:
    return Registry()


def text(registry: Registry, accept: str = "") -> list[str]:
    """The lines of a scrape."""
    return render(accept, registry)[1].decode().splitlines()


def test_the_text_format(registry: Registry) -> None:
    registry.counter(ENDED).at('o"r\\der\n', "good").add(2)
    registry.gauge(FREE).at().set(1.5)
    registry.histogram(TOOK).at("order").record(0.7, KEPT)
    assert text(registry) == [
        "# TYPE saga_ended_total counter",
        '# HELP saga_ended_total Sagas that "ended".',
        'saga_ended_total{saga="o\\"r\\\\der\\n",the_outcome="good"} 2',
        "# TYPE saga_took_seconds histogram",
        "# HELP saga_took_seconds Time.",
        'saga_took_seconds_bucket{saga="order",le="0.5"} 0',
        'saga_took_seconds_bucket{saga="order",le="1.0"} 1',
        'saga_took_seconds_bucket{saga="order",le="+Inf"} 1',
        'saga_took_seconds_count{saga="order"} 1',
        'saga_took_seconds_sum{saga="order"} 0.7',
        "# TYPE slots_free gauge",
        "# HELP slots_free Free.",
        "slots_free 1.5",
    ]


def test_open_metrics_has_units_exemplars_and_an_end(registry: Registry) -> None:
    registry.counter(ENDED).at("order", "good").add()
    cell = registry.histogram(TOOK).at("order")
    cell.record(0.7, KEPT)
    cell.record(0.8, NOT_KEPT)
    cell.record(9.0, NOT_KEPT)
    lines = text(registry, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert lines[-1] == "# EOF"
    assert "# TYPE saga_ended counter" in lines
    assert "# UNIT saga_took_seconds seconds" in lines
    exemplar = f'# {{trace_id="{"a" * 32}",span_id="{"1" * 16}"}} 0.7'
    assert [line for line in lines if "trace_id" in line] == [
        f'saga_took_seconds_bucket{{saga="order",le="1.0"}} 2 {exemplar}'
    ], "only of the measurement whose trace is kept, in its bucket"


@pytest.mark.parametrize(
    ("accept", "openly"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x,text/plain", False),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
    ],
)
def test_who_gets_open_metrics(accept: str, openly: bool, registry: Registry) -> None:
    assert render(accept, registry)[0] == (OPEN_METRICS_TYPE if openly else TEXT_TYPE)


def test_times_before_the_begin_count_as_none(registry: Registry) -> None:
    registry.histogram(TOOK).at("order").record(-3.0)
    assert registry.values(TOOK) == {("order",): Distribution([1, 0, 0], 0.0, [None, None, None])}


def test_the_first_hundred_names_are_kept_apart_and_the_rest_is_other(registry: Registry) -> None:
    ended = registry.counter(ENDED)
    for number in range(NAME_LIMIT + 3):
        ended.at(f"saga-{number}", "good").add()
        ended.at(f"saga-{number}", "bad").add()
    found = registry.values(ENDED)
    names = {saga for saga, _ in found}
    assert names == {*(f"saga-{number}" for number in range(NAME_LIMIT)), OTHER}
    assert found[OTHER, "good"] == found[OTHER, "bad"] == 3
    registry.histogram(TOOK).at("saga-101").record(1.0)
    assert list(registry.values(TOOK)) == [(OTHER,)], "it is the same name for every metric"


def test_beyond_the_limit_of_series_all_names_are_other() -> None:
    registry = Registry(SeriesLimit(12))
    for number in range(5):
        registry.histogram(TOOK).at(f"saga-{number}").record(1.0)
    assert list(registry.values(TOOK)) == [("saga-0",), ("saga-1",), (OTHER,)]
    assert sum(registry.values(TOOK)[OTHER,].counts) == 3
    registry.gauge(FREE).at().set(1)
    assert registry.values(FREE) == {(): 1}, "what has no such names is not limited"


def test_what_is_kept_replaces_what_was(registry: Registry) -> None:
    stuck = registry.gauge(Metric(name="stuck", kind=Kind.GAUGE, unit="{saga}", help="", labels=(SAGA,)))
    stuck.keep({("order",): 2, ("app",): 1})
    assert stuck.values() == {("order",): 2, ("app",): 1}
    stuck.keep({("app",): 5})
    assert stuck.values() == {("app",): 5}
    stuck.keep({})
    assert stuck.values() == {}


def test_series_that_are_gone_make_room() -> None:
    registry = Registry(SeriesLimit(1))
    stuck = registry.gauge(Metric(name="stuck", kind=Kind.GAUGE, unit="{saga}", help="", labels=(SAGA,)))
    stuck.keep({("order",): 2})
    stuck.keep({})
    stuck.keep({("app",): 1})
    assert stuck.values() == {("app",): 1}


def test_watched_values_of_several_owners_are_added(registry: Registry) -> None:
    free = registry.gauge(FREE)
    ends = [free.watch(lambda: {(): 2}), free.watch(lambda: {(): 3})]
    assert free.values() == {(): 5}
    ends[0]()
    ends[0]()
    assert free.values() == {(): 3}
    ends[1]()
    assert free.values() == {}


def test_counters_begin_at_nought(registry: Registry) -> None:
    registry.counter(Metric(name="died", kind=Kind.COUNTER, unit="{node}", help="Died."))
    registry.gauge(FREE)
    assert text(registry)[-1] == "died_total 0", "so the first increase is seen; a gauge that nobody sets is not shown"


def test_scrapes_in_other_threads_change_nothing(registry: Registry) -> None:
    ended, took = registry.counter(ENDED), registry.histogram(TOOK)
    over = threading.Event()
    failures: list[Exception] = []

    def scrape() -> None:
        while not over.is_set():
            try:
                render("application/openmetrics-text", registry)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=scrape) for _ in range(2)]
    for one in threads:
        one.start()
    for number in range(2000):
        ended.at(f"saga-{number % 150}", "good").add()
        took.at(f"saga-{number % 150}").record(0.1, KEPT)
    over.set()
    for one in threads:
        one.join()
    assert failures == []
    assert sum(registry.values(ENDED).values()) == 2000
    assert sum(sum(one.counts) for one in registry.values(TOOK).values()) == 2000


def test_a_process_that_is_forked_during_a_scrape_counts_on() -> None:
    program = """
import os, signal, threading
from orchestrix.telemetry.metrics.catalogue import JOBS_OWNED, SAGA_STARTED
from orchestrix.telemetry.metrics.exposition import render
from orchestrix.telemetry.metrics.instruments import counter, gauge
began, go_on = threading.Event(), threading.Event()
def slow():
    began.set()
    go_on.wait(0.5)
    return {(): 1}
end = gauge(JOBS_OWNED).watch(slow)
scrape = threading.Thread(target=render, args=("",))
scrape.start()
began.wait()
child = os.fork()
if not child:
    signal.alarm(10)
    counter(SAGA_STARTED).at("new").add()
    os._exit(0)
go_on.set()
scrape.join()
assert os.waitpid(child, 0)[1] == 0, "it waits for a lock that nobody releases"
counter(SAGA_STARTED).at("also new").add()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
