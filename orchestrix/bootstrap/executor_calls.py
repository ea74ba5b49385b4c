"""Executor calls assembly: by what a node that owns jobs picks and calls the executors of the registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from orchestrix.bootstrap.context import API, COORDINATOR, NodeContext
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.addresses import parse_address
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.domain.registry.routing import Strategy
from orchestrix.jobs.executors.port import CallResult, CallTimings, ExecutorCalls, ExecutorRun
from orchestrix.persistence.engine import Transaction
from orchestrix.registry.callback_urls import CallbackUrls
from orchestrix.registry.executor_client import (
    Busy,
    ExecutorClient,
    LookupResult,
    NotCalled,
    NotReached,
    Refused,
    RunResult,
    Taken,
    Unknown,
)
from orchestrix.registry.group_refresher import GroupRefresher
from orchestrix.registry.prober import ExecutorProber
from orchestrix.registry.router import RouteRequest, pick_in
from orchestrix.registry.services import ExecutorRegistry
from orchestrix.registry.suspects import SuspicionView
from orchestrix.telemetry import tracing

log = logging.getLogger("orchestrix.jobs")


@dataclass(frozen=True, slots=True)
class RegistryExecutors:
    """Calls executors by the registry's client. A group whose executor was not reached is refreshed at once.

    `on_silence` is called with the group and the address of each executor that gave no answer to a call, `on_answer`
    with those of each that did.
    """

    client: ExecutorClient
    not_reached: Callable[[str], None]
    on_silence: Callable[[str, str], None] = lambda group, address: None
    on_answer: Callable[[str, str], None] = lambda group, address: None

    async def run(self, run: ExecutorRun) -> CallResult:
        """As `ExecutorCallPort`."""
        named = {"traceparent": run.traceparent, "tracestate": run.tracestate}
        trace = {name: value for name, value in named.items() if value is not None}
        result = await self.client.run(run.group, parse_address(run.address), run_fields(run), trace)
        if isinstance(result, NotReached):
            self.not_reached(run.group)
        self._note(run.group, run.address, result)
        return call_result(result)

    async def has(self, address: str, group: str, history_id: str) -> bool | None:
        """As `ExecutorCallPort`."""
        found = await self.client.holds(group, parse_address(address), history_id)
        self._note(group, address, found)
        return found == "held" if isinstance(found, str) else None

    async def cancel(self, address: str, group: str, job_id: str, history_id: str, reason: str) -> None:
        """As `ExecutorCallPort`."""
        context = tracing.current_context()
        trace = None if context is None else context.headers
        answer = await self.client.cancel(group, parse_address(address), job_id, history_id, reason, trace)
        self._note(group, address, answer)
        if not isinstance(answer, Taken):
            log.debug("the executor at %s was not asked to stop job %s: %s", address, job_id, answer.reason)

    def _note(self, group: str, address: str, answer: RunResult | LookupResult) -> None:
        if isinstance(answer, NotCalled):  # that says nothing of the executor
            return
        notify = self.on_silence if isinstance(answer, (Unknown, NotReached)) else self.on_answer
        notify(group, address)


def run_fields(run: ExecutorRun) -> dict[str, object]:
    """The body of the call."""
    return {
        "jobId": run.job_id,
        "historyId": run.history_id,
        "attempt": run.attempt,
        "handler": run.handler,
        "payload": run.payload,
        "timeoutMs": run.timeout_ms,
        "correlationId": run.correlation_id,
        "group": run.group,
        "shardIndex": run.shard_index,
        "shardTotal": run.shard_total,
        "callbacks": list(run.callbacks),
        "token": run.token,
    }


def call_result(result: RunResult) -> CallResult:
    """What the answer means to the owner of the attempt."""
    match result:
        case Taken():
            return CallResult(CallAnswer.TAKEN, status=result.status)
        case Busy():
            return CallResult(CallAnswer.BUSY, result.reason, result.status)
        case Refused():
            return CallResult(CallAnswer.REFUSED, result.reason, result.status)
        case NotCalled():
            return CallResult(CallAnswer.NOT_CALLED, result.reason)
        case NotReached():
            return CallResult(CallAnswer.NOT_REACHED, result.reason)
        case _:
            return CallResult(CallAnswer.UNKNOWN, result.reason, result.status)


async def pick_for(tx: Transaction, job: JobRow, *, probe_s: float) -> Sequence[str]:
    """As `PickAddresses`: the executors that the job's strategy picks, of its group's as they are in `tx`.

    Who gave no answer to the job's owner is passed over; a node repeats its suspicions every `probe_s` seconds.
    """
    request = RouteRequest(Strategy(str(job.routing)), routing_key(job), job.routing_address)
    seen_by = SuspicionView(job.owner, probe_s)
    return (await pick_in(tx, str(job.executor_group), request, seen_by)).addresses


def routing_key(job: JobRow) -> str:
    """What CONSISTENT_HASH keeps together: the job's key, else itself; schedules and sagas give one."""
    return job.id if job.routing_key is None else job.routing_key


@dataclass(frozen=True, slots=True)
class NodeExecutors:
    """What a node calls executors with. It is closed when nothing calls any more."""

    calls: ExecutorCalls
    client: ExecutorClient
    refresher: GroupRefresher
    prober: ExecutorProber


def assemble_executor_calls(
    node: NodeContext, registry: ExecutorRegistry, current_id: Callable[[], str | None] = lambda: None
) -> NodeExecutors | None:
    """The parts; only for a node that can own jobs. `current_id` is its present id in the cluster."""
    if COORDINATOR not in node.roles:
        return None
    settings = node.settings.registry
    client = ExecutorClient(registry.check.judged, settings.secrets(), settings.call_timeout)
    own = registry.listeners.own if API in node.roles else tuple
    refresher = GroupRefresher(node.database, registry.directory.renew)
    prober = ExecutorProber(node.database, settings, client.healthy, current_id)
    calls = ExecutorCalls(
        RegistryExecutors(client, refresher.refresh, prober.doubt, prober.answered),
        partial(pick_for, probe_s=settings.probe),
        CallTimings(settings.probe, settings.dead),
        CallbackUrls(node.database, node.settings.http.public_url, own),
    )
    return NodeExecutors(calls, client, refresher, prober)
