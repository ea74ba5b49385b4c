"""Has every message that a real part sends the form that the catalogue of messages says?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from typing import Any, Final

import pytest
from pydantic import BaseModel, RootModel

from orchestrix import Executor, clock
from orchestrix.api.asyncapi.catalogue import MESSAGES, contract_of
from orchestrix.api.registry.models import HeartbeatBody
from orchestrix.bootstrap.executor_calls import run_fields
from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import COMMANDS, DEAD, EVENTS
from orchestrix.cluster.presence import missing
from orchestrix.domain.contracts import jobs
from orchestrix.domain.registry.addresses import ExecutorAddress, parse_address
from orchestrix.domain.shards import messages as shards
from orchestrix.domain.shards.grants import Grant
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import Assignment, MemberHeartbeat, MemberLeave, MemberRegistration
from orchestrix.jobs.executors.owner_notifier import OwnerNotifier
from orchestrix.jobs.executors.port import ExecutorRun
from orchestrix.registry.executor_client import ExecutorClient
from orchestrix.saga.definition import STEP_FAILED, STEP_STARTED
from orchestrix.saga.messages import StepError, dump
from orchestrix.shards.forwarding import forward
from orchestrix.shards.rabbitmq import MemberAnswer
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.worker.executor.http_server import ExecutorRequest, ExecutorResponse, ExecutorServer
from orchestrix.worker.executor.run_call import read_run
from orchestrix.worker.jobs.messages import AttemptMessages
from orchestrix.worker.jobs.outcome import AttemptOutcome
from tests.fakes.broker import FakeBroker
from tests.simulation import cluster, owners, saga
from tests.support import eventually, free_port


def lost(model: type[BaseModel], body: bytes) -> str | None:
    """What the model does not know of the body, or refuses; None where the two fit."""
    sent = json.loads(body)
    try:
        read = model.model_validate_json(body, strict=True)
    except ValueError as refused:
        return f"{refused}: {body[:500]!r}"
    known = json.loads(read.model_dump_json(exclude_unset=True))
    return None if known == sent else f"{model.__name__} knows {known}, and {sent} was sent"


OF_SAGAS: Final = {STEP_FAILED, STEP_STARTED}
OF_JOBS: Final = {
    *{"job.dispatch", "job.assigned", "job.status", "job.log", "job.cancel", "job.handoff", "job.handoff.ack"},
    *{"worker.heartbeat", "node.poke"},
}
OF_THE_CLUSTER: Final = {"leader.token", "node.heartbeat", "node.ping"}
OF_SHARDS: Final = {f"shard.{kind}" for kind in shards.MODELS}
OF_EXECUTORS: Final = {
    *{"executor.run", "executor.cancel", "executor.status", "executor.logs"},
    *{"registry.heartbeat", "registry.goodbye"},
}


def test_every_message_of_the_catalogue_is_produced_here() -> None:
    assert set(MESSAGES) == OF_SAGAS | OF_JOBS | OF_THE_CLUSTER | OF_SHARDS | OF_EXECUTORS


class Tap:
    """Sees all that the broker takes."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        """One message."""
        contract = contract_of(message)
        if contract is None:
            self.seen[f"none: {message.exchange or message.type}"] += 1
            return
        kind = {COMMANDS: "command", EVENTS: contract.model.__name__}.get(message.exchange, contract.name)
        self.seen[kind] += 1
        if self.seen[kind] > 2000 or len(self.wrong) > 5:
            return
        if (fault := lost(contract.model, message.body)) is not None:
            self.wrong.append(f"{contract.name}: {fault}")

    def acknowledging(self, delivery: Delivery) -> None:
        """Acknowledgements have no body."""


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tap]:
    """At every broker that is made."""
    made, one = MemoryServer.__init__, Tap()

    def tapped(self: MemoryServer, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.observers.append(one)

    monkeypatch.setattr(MemoryServer, "__init__", tapped)
    yield one
    assert one.wrong == []
    assert {kind for kind in one.seen if kind.startswith("none: ")} <= {"none: probe", f"none: {DEAD}"}


def test_sagas(simulation: saga.Simulation, tap: Tap) -> None:
    for seed in range(12):
        simulation.run(seed)
    assert {"command", "SuccessEvent", "StepFailedEvent", "StepStartedEvent"} <= tap.seen.keys()


def test_jobs_and_their_owners(tap: Tap) -> None:
    with owners.simulation() as runs:
        for seed in range(6):
            runs.run(seed)
    assert tap.seen.keys() >= OF_JOBS, tap.seen


def test_the_cluster(tap: Tap) -> None:
    with cluster.simulation() as runs:
        for seed in range(4):
            runs.run(seed)
    assert tap.seen.keys() >= OF_THE_CLUSTER, tap.seen


def test_shards() -> None:
    who: dict[str, Any] = {"worker_id": "w-1", "instance": "i-1", "shard_count": 100_000}
    plain = {**who, "instance": None}
    some, grants, wide = ShardRanges.of([(0, 3)]), (Grant(0, 3, 7),), (Grant(0, 99_999, 1),)
    registration = MemberRegistration(**who, seq=1, weight=2, grace_s=5.0)
    beat = MemberHeartbeat(**who, shards=some, seq=2, generation=3, weight=2, grace_s=5.0)
    wide_beat = MemberHeartbeat(**who, shards=ShardRanges.of([(0, 99_999)]), seq=2, generation=3)
    sent = {
        "register": [shards.register("s", registration), shards.register("s", MemberRegistration(**plain))],
        "heartbeat": [
            shards.heartbeat("s", beat, grants),
            shards.heartbeat("s", MemberHeartbeat(**plain, shards=some)),
            shards.heartbeat("s", wide_beat, wide),
        ],
        "leave": [shards.leave("s", MemberLeave("w-1", "i-1")), shards.leave("s", MemberLeave("w-1", None))],
        "assignment": [
            shards.assignment(Assignment("w-1", "i-1", None, 3, 2, grants)),
            shards.assignment(Assignment("w-1", None, None, 3, 2, grants, problem="why")),
            shards.refusal("why"),
        ],
    }
    for kind, bodies in sent.items():
        for body in bodies:
            model = MESSAGES[f"shard.{kind}"].model
            if b"[[" in body:  # a model reads a shard as the range of one
                assert lost(model, body) is None
            else:
                assert model.model_validate_json(body, strict=True)


async def cancelled(job_id: str, history_id: str) -> bytes:
    """The body by which a node stops an attempt of an executor."""
    bodies: list[bytes] = []

    def answer(request: ExecutorRequest) -> ExecutorResponse:
        bodies.append(request.body)
        return ExecutorResponse(200)

    async def here(address: ExecutorAddress) -> list[IPv4Address]:
        return [IPv4Address("127.0.0.1")]

    port = free_port()
    server, client = ExecutorServer(("127.0.0.1", port), answer), ExecutorClient(here, {}, 5.0)
    await server.start()
    await client.cancel("shop", parse_address(f"http://127.0.0.1:{port}"), job_id, history_id, "not wanted")
    await client.close()
    await server.stop()
    return bodies[0]


async def test_executors() -> None:
    ids = {"job_id": clock.uuid7(), "history_id": clock.uuid7()}
    run = ExecutorRun(
        address="http://127.0.0.1:9999", group="shop", attempt=1, handler="count", payload={"to": 3}, timeout_ms=None,
        correlation_id="c", callbacks=["http://127.0.0.1:8080/jobs/1/attempts/2"], token="t", shard_index=0,
        shard_total=3, **ids,
    )  # fmt: skip
    assert lost(MESSAGES["executor.run"].model, dump(run_fields(run))) is None
    told = AttemptMessages(read_run(dump(run_fields(run))).dispatch, run.address, {})
    error = StepError("Disk", "full", retryable=True, retry_after_ms=5, unsure=True, hold=True)
    statuses = [
        told.running(1, {"done": 1}),
        told.ended(3, AttemptOutcome("FAILED", error=error), None, 2),
        told.ended(3, AttemptOutcome("SUCCEEDED", {"counted": 3}), None, 0),
    ]
    for one in statuses:
        assert lost(MESSAGES["job.status"].model, one.body) is None
        assert lost(MESSAGES["executor.status"].model, one.body) is None
    line = told.log(2, "info", "counted").body
    assert lost(MESSAGES["job.log"].model, line) is None
    assert lost(MESSAGES["executor.logs"].model, b"[" + line + b"]") is None
    assert lost(MESSAGES["executor.cancel"].model, await cancelled(*ids.values())) is None
    executor = Executor("shop", "http://127.0.0.1:9999", ["http://127.0.0.1:8080"])
    assert HeartbeatBody.model_validate(executor._heartbeat()).registryKey == "shop"
    goodbye = {**executor._key, "instance": executor.instance}
    assert lost(MESSAGES["registry.goodbye"].model, dump(goodbye)) is None


async def test_notifications_of_nodes_and_dispatches() -> None:
    broker = FakeBroker()
    await broker.start()
    await missing(broker, ["node-1"])
    OwnerNotifier(broker)(["node-2"])
    await forward(broker, [MemberAnswer("zmq:00", b"{}", via="node-3")])
    await eventually(lambda: len(broker.published) == 3, deadline=5)
    for one in broker.published:
        contract = contract_of(one)
        assert contract is not None
        assert lost(contract.model, one.body) is None


def test_what_no_model_knows_is_seen() -> None:
    known = {"jobId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d14", "historyId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d14"}
    assert lost(jobs.JobAssignedMessage, json.dumps(known).encode()) is None
    assert lost(jobs.JobAssignedMessage, json.dumps({**known, "more": 1}).encode())
    assert lost(jobs.JobAssignedMessage, json.dumps({"jobId": known["jobId"]}).encode())
    assert lost(RootModel[int], b'"5"')
