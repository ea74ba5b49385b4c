"""Is a node's way to executors made of the registry's parts, and only where it owns jobs?"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrix import server
from orchestrix.bootstrap.executor_calls import RegistryExecutors, assemble_executor_calls, routing_key
from orchestrix.config.settings import HttpSettings, Settings
from orchestrix.domain.registry.addresses import ExecutorAddress
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.jobs.executors.port import CallResult, ExecutorRun
from orchestrix.lifecycle import Health
from orchestrix.persistence.engine import Database
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
from orchestrix.saga.messages import dump
from orchestrix.worker.executor.run_call import read_run
from tests.conformance.store.test_jobs import pending
from tests.unit.bootstrap.test_composition import ALL, built, work_of

RUN = ExecutorRun(
    address="http://10.0.0.7:9999",
    group="shop",
    job_id="j-1",
    history_id="h-1",
    attempt=2,
    handler="count",
    payload={"to": 3},
    timeout_ms=5000,
    correlation_id="c-1",
    callbacks=["http://10.0.0.1:8080/jobs/j-1/attempts/h-1"],
    token="t",
    traceparent="00-1-2-01",
    shard_index=1,
    shard_total=4,
)


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    made = Database(sqlite_url)
    yield made
    await made.close()


@dataclass
class Client:
    """The registry's client, whose every answer the test chooses."""

    answer: Any
    said: list[Any] = field(default_factory=list)

    async def run(self, app: str, address: ExecutorAddress, fields: Mapping[str, Any], trace: Any = None) -> RunResult:
        self.said.append((app, str(address), fields, trace))
        return cast(RunResult, self.answer)

    async def holds(self, app: str, address: ExecutorAddress, history_id: str) -> LookupResult:
        return cast(LookupResult, self.answer)


def executors(client: Client, refreshed: list[str] | None = None) -> RegistryExecutors:
    return RegistryExecutors(cast(ExecutorClient, client), ([] if refreshed is None else refreshed).append)


async def test_an_executor_reads_what_it_is_called_with() -> None:
    client = Client(Taken())
    await executors(client).run(RUN)
    [(app, address, fields, trace)] = client.said
    assert (app, address, trace) == ("shop", RUN.address, {"traceparent": "00-1-2-01"})
    call = read_run(dump(fields))
    got = call.dispatch
    assert (call.group, call.token, list(call.callbacks)) == ("shop", "t", RUN.callbacks)
    assert (got.job_id, got.history_id, got.attempt, got.handler) == ("j-1", "h-1", 2, "count")
    assert (got.payload, got.timeout_ms, got.shard_index, got.shard_total) == ({"to": 3}, 5000, 1, 4)


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (Taken(201), CallResult(CallAnswer.TAKEN, status=201)),
        (Busy(409, "full"), CallResult(CallAnswer.BUSY, "full", 409)),
        (Refused(422, "no"), CallResult(CallAnswer.REFUSED, "no", 422)),
        (Unknown("late", 500), CallResult(CallAnswer.UNKNOWN, "late", 500)),
        (NotReached("gone"), CallResult(CallAnswer.NOT_REACHED, "gone")),
        (NotCalled("full"), CallResult(CallAnswer.NOT_CALLED, "full")),
    ],
)
async def test_each_answer_has_its_meaning_and_one_not_reached_refreshes_the_group(
    answer: RunResult, meaning: CallResult
) -> None:
    refreshed: list[str] = []
    assert await executors(Client(answer), refreshed).run(RUN) == meaning
    assert refreshed == (["shop"] if isinstance(answer, NotReached) else [])


@pytest.mark.parametrize(
    ("answer", "noted"),
    [(Taken(), "answer"), (Busy(409, "full"), "answer"), (Unknown("late"), "silence"), (NotCalled("full"), None)],
)
async def test_what_was_not_called_is_no_sign_of_an_executor(answer: RunResult, noted: str | None) -> None:
    found: list[str] = []
    caller = RegistryExecutors(
        cast(ExecutorClient, Client(answer)),
        lambda app: None,
        on_silence=lambda app, address: found.append("silence"),
        on_answer=lambda app, address: found.append("answer"),
    )
    await caller.run(RUN)
    assert found == ([] if noted is None else [noted])


@pytest.mark.parametrize(
    ("answer", "has"), [("held", True), ("denied", False), (Unknown("x"), None), (NotReached("x"), None)]
)
async def test_only_a_denial_says_that_it_has_not_the_attempt(answer: LookupResult, has: bool | None) -> None:
    assert await executors(Client(answer)).has(RUN.address, "shop", "h-1") is has


@pytest.mark.parametrize(
    ("of", "key"),
    [
        ({"routing_key": "k", "schedule_id": "s"}, "k"),
        ({"routing_key": ""}, ""),
        ({"id": "j"}, "j"),
    ],
)
def test_what_is_kept_together(of: dict[str, Any], key: str, database: Database) -> None:
    assert routing_key(replace(pending(database), **of)) == key


async def test_only_who_owns_jobs_calls_executors(database: Database) -> None:
    node = built(database, ALL)
    assert work_of(node).dependencies.executors is not None
    other = built(database, frozenset({"api", "orchestrator"}))
    assert assemble_executor_calls(other.context, other.registry) is None


async def test_the_client_is_closed_with_the_node(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ExecutorClient] = []

    async def close(self: ExecutorClient) -> None:
        closed.append(self)

    monkeypatch.setattr(ExecutorClient, "close", close)
    node = built(database)
    await node.links.start()
    assert closed == []
    await node.links.stop()
    assert len(closed) == 1


async def test_a_node_without_an_api_does_not_name_itself(database: Database) -> None:
    found = []
    for roles in (ALL, frozenset({"coordinator"})):
        node = built(database, roles)
        made = assemble_executor_calls(node.context, node.registry)
        assert made is not None
        found.append(list(cast(Any, made.calls.callbacks)._own()))
    assert found == [[("127.0.0.1", 8080)], []]


async def test_a_server_notes_where_it_listens_before_the_node_works(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[socket.socket] = []

    class NodeStarts(Exception):
        """What is to be seen was before this."""

    async def serve(sockets: object) -> None:
        """It serves nobody."""

    async def start() -> None:
        raise NodeStarts

    settings = Settings(http=HttpSettings(port=0))
    context = SimpleNamespace(roles=ALL, settings=settings, name="node-1")
    registry = SimpleNamespace(listeners=SimpleNamespace(bound=noted.extend))
    monkeypatch.setattr(server, "_server", lambda *_: SimpleNamespace(serve=serve))
    monkeypatch.setattr(server, "export_traces", lambda *_: None)
    node: Any = SimpleNamespace(context=context, registry=registry, start=start, health=Health())
    with pytest.raises(NodeStarts):
        await server._run(node, None, [0], None, cast(Any, None), cast(Any, None))
    [found] = noted
    with found:
        assert found.getsockname()[1] > 0


@pytest.mark.parametrize(
    ("answer", "silent"),
    [(Taken(), False), (Busy(409, "full"), False), (Refused(422, "no"), False), (NotReached("no route"), True)],
)
async def test_who_gives_no_answer_is_doubted_and_an_answer_ends_that(answer: Any, silent: bool) -> None:
    doubted: list[tuple[str, str]] = []
    answered: list[tuple[str, str]] = []
    client = cast(ExecutorClient, Client(answer))
    calls = RegistryExecutors(
        client,
        lambda group: None,
        on_silence=lambda *who: doubted.append(who),
        on_answer=lambda *who: answered.append(who),
    )
    await calls.run(RUN)
    assert (doubted, answered) == (([(RUN.group, RUN.address)], []) if silent else ([], [(RUN.group, RUN.address)]))
