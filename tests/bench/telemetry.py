"""What do log lines and traces cost of the sagas that are done in a second?"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.bench import bars
from tests.bench.cases import Findings
from tests.bench.measure import median
from tests.bench.product import Product, Result, WrongResult, product
from tests.bench.servers import Servers
from tests.otlp import OtlpReceiver, receiving

WITHOUT, LOGS, TRACES = "neither logs nor traces", *bars.TELEMETRY
QUIET: Final = {"ORCHESTRIX_LOG__LEVEL": "warning", "ORCHESTRIX_LOG__FORMAT": "json"}
ONE_IN_TEN: Final = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}


class TraceCounter(OtlpReceiver):
    """Counts the traces, and takes next to no time of the machine on which their senders are measured."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.traces: set[bytes] = set()

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keeps the ids of the traces alone."""
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.traces.update(span.trace_id for span in scope.spans)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many runs each way of telemetry has, and of how many sagas, started by so many clients at once."""

    runs: int = 5
    sagas: int = 4000
    clients: int = 1000


FULL: Final = Sizes()
QUICK: Final = Sizes(2, 800, 400)


def measure(servers: Servers, sizes: Sizes, found: Findings) -> None:
    """The three ways take turns, so that all meet the same weather.

    Raises `WrongResult` where no spans arrive, or many more than those of one saga in ten.
    """
    with receiving(TraceCounter) as receiver, ExitStack() as stack:
        ways = {
            WITHOUT: QUIET,
            LOGS: {**QUIET, "ORCHESTRIX_LOG__LEVEL": "info"},
            TRACES: {**QUIET, **ONE_IN_TEN, **receiver.environment(OTEL_BSP_SCHEDULE_DELAY="1000")},
        }
        running = {
            way: stack.enter_context(product(servers, f"telemetry{place}", more))
            for place, (way, more) in enumerate(ways.items())
        }
        results = _in_turns(running, sizes)
        _check(receiver, (sizes.runs * sizes.sagas) + 500)
    rates = {way: median(one.rate for one in some) for way, some in results.items()}
    for way, some in results.items():
        found.take(way, 1, lambda some=some: _middle(some))  # type: ignore[misc]
    found.bars += [bars.observed(way, rates[WITHOUT], rates[way]) for way in (LOGS, TRACES)]


def _in_turns(running: dict[str, Product], sizes: Sizes) -> dict[str, list[Result]]:
    results: dict[str, list[Result]] = {way: [] for way in running}
    for turn in range(sizes.runs):
        ways = list(running)
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            results[way].append(running[way].inside(sizes.sagas, sizes.clients))
    return results


def _middle(results: list[Result]) -> Result:
    return sorted(results, key=lambda one: one.rate)[len(results) // 2]


def _check(receiver: TraceCounter, sagas: int) -> None:
    traces = len(receiver.traces)
    if not 0.05 * sagas < traces < 0.3 * sagas:  # commits of many sagas are traces of their own
        raise WrongResult(f"{traces} traces of {sagas} sagas arrived, and one in ten was to be kept")
