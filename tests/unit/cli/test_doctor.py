"""Does `command` find what is wrong, and say what helps?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrix.bootstrap.factories import load_catalog
from orchestrix.broker.port import LinkState, Outcome, Outgoing, Published, Topology
from orchestrix.broker.topology import saga_topology
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.doctor import command, queues, rabbitmq_management
from orchestrix.cli.doctor.jobs import JobFacts
from orchestrix.cli.doctor.rabbitmq_management import DescriptorUsage
from orchestrix.cli.doctor.registry import calls, registry
from orchestrix.cli.doctor.result import WARN, CheckResult
from orchestrix.cli.doctor.shards import ShardFacts
from orchestrix.config.registry import RegistrySettings
from orchestrix.errors import ConfigError, Contention, NotFound, SchemaMismatch, Unavailable
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerFacts, WorkerHeartbeatRow
from orchestrix.persistence.dead_letters import DeadLetter, DeadLetterFilter
from orchestrix.persistence.dialects.port import FULL, LOCKED
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs.job_queues import FailedJob
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.persistence.sagas.command_queues import TimeoutBurst
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.saga.catalog import Catalog
from orchestrix.worker import module_loader
from orchestrix.worker.jobs import functions
from orchestrix.worker.module_loader import load_sagas
from sagas.app_provisioning import APP_PROVISIONING
from tests.integration.api.test_dead_letters import letter
from tests.servers import templates
from tests.unit.cli.shell import Shell
from workers.git_process import INSTALL

CATALOG = Catalog([APP_PROVISIONING])


@dataclass
class FakeBroker:
    """A broker whose queues the test wrote down: name to (ready, consumers)."""

    counts: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {queue.name: (0, 1) for queue in saga_topology(CATALOG).queues}
    )
    up: bool = True
    state = LinkState.UP
    full: str | None = None
    """Why it takes no messages, which it tells who sends one."""
    blocked: str | None = None
    problem: str | None = "connection refused"
    refusal: str | None = None
    """What RabbitMQ says to who declares."""
    denied: dict[str, str] = field(default_factory=dict)
    """What it says to who reads a queue, or sends to an exchange."""

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def wait_connected(self, timeout: float) -> bool:
        return self.up

    async def publish(self, messages: Sequence[Outgoing], timeout: float) -> list[Published]:
        if self.full is not None:
            self.blocked = self.full
        return [Published(Outcome.RETURNED if self.full is None else Outcome.UNKNOWN)]

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        return self.counts.get(queue)

    async def refusals(self, queues: Sequence[str], exchanges: Sequence[str], source: str) -> list[str]:
        return [self.denied[name] for name in (*queues, *exchanges) if name in self.denied]

    async def declare(self, topology: Topology) -> None:
        (queue,), (binding,) = topology.queues, topology.bindings
        assert queue.exclusive
        assert (binding.queue, binding.exchange) == (queue.name, "orchestrator.events")
        if self.refusal is not None:
            raise ConfigError(f"queue {queue.name}: {self.refusal}")


@dataclass
class FakeDatabase:
    """A database that is there, or not."""

    error: Exception | None = None
    refuses: Exception | None = None
    copied: Exception | None = None
    ahead: float = 0.0

    letters: list[DeadLetter] = field(default_factory=list)
    waves: list[TimeoutBurst] = field(default_factory=list)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[FakeDatabase]:
        yield self

    async def ping(self) -> None:
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        return


@dataclass
class Parts:
    """What the checks find."""

    broker: FakeBroker = field(default_factory=FakeBroker)
    database: FakeDatabase = field(default_factory=FakeDatabase)
    schema_error: Exception | None = None
    drift: list[str] = field(default_factory=list)
    facts: JobFacts = field(default_factory=JobFacts)
    shards: ShardFacts = field(default_factory=lambda: ShardFacts(datetime.now(UTC)))
    versions: list[CheckResult] = field(default_factory=list)
    descriptors: DescriptorUsage | None = None
    workers: dict[str, str] = field(default_factory=dict)
    executors: dict[str, int] = field(default_factory=dict)
    """How many are registered, by app."""
    groups: list[str] = field(default_factory=list)
    health: Callable[[], Any] = lambda: {"status": "healthy", "checks": []}
    answers: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    """What the API answers at other paths, by its query."""


@pytest.fixture
def parts(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """Everything is well until the test says otherwise."""
    found = Parts()

    async def check_schema(_: object) -> None:
        if found.schema_error is not None:
            raise found.schema_error

    async def drift(_: str) -> list[str]:
        return found.drift

    bootstrap: Any = ModuleType("orchestrix.bootstrap")
    bootstrap.__path__ = []
    bootstrap.open_database = lambda settings: found.database
    bootstrap.open_broker = lambda url, name: found.broker
    bootstrap.load_catalog = lambda settings: CATALOG
    inner: Any = ModuleType("orchestrix.bootstrap.factories")
    inner.check_schema = check_schema
    monkeypatch.setitem(sys.modules, "orchestrix.bootstrap", bootstrap)
    monkeypatch.setitem(sys.modules, "orchestrix.bootstrap.factories", inner)

    async def waves(database: FakeDatabase, within: timedelta) -> list[TimeoutBurst]:
        return database.waves

    async def page(connection: FakeDatabase, wanted: DeadLetterFilter, limit: int) -> list[DeadLetter]:
        assert wanted.open_only
        return connection.letters[:limit]

    async def suspects(connection: FakeDatabase, limit: int) -> list[RedeliveryRecord]:
        return []

    async def versions(*_: object) -> list[CheckResult]:
        return found.versions

    async def facts(_: FakeDatabase, silent: float, most: int) -> JobFacts:
        assert silent == 30
        return found.facts

    async def shard_facts(_: FakeDatabase) -> ShardFacts:
        return found.shards

    async def command_workers(_: FakeDatabase) -> dict[str, str]:
        return found.workers

    async def executors(_: FakeDatabase) -> dict[str, int]:
        return found.executors

    async def made_groups(_: FakeDatabase) -> list[SimpleNamespace]:
        return [SimpleNamespace(app_name=app, addresses=()) for app in found.groups]

    async def try_once(database: FakeDatabase, name: str) -> None:
        if database.refuses is not None:
            raise database.refuses

    async def ahead_s(connection: FakeDatabase) -> float:
        return connection.ahead

    async def installation(connection: FakeDatabase) -> None:
        if connection.copied is not None:
            raise connection.copied

    def get(self: ApiClient, path: str, query: Any = None, *, also: Any = ()) -> Any:
        return found.answers.get(path, lambda query: found.health())(query)

    monkeypatch.setattr("orchestrix.persistence.cluster.installation.read", installation)
    monkeypatch.setattr("orchestrix.persistence.cluster.write_probes.try_once", try_once)
    monkeypatch.setattr("orchestrix.persistence.clock_rollback.ahead_s", ahead_s)
    monkeypatch.setattr(command, "facts", facts)
    monkeypatch.setattr(command, "shard_facts", shard_facts)
    monkeypatch.setattr(command, "command_workers", command_workers)
    monkeypatch.setattr(command, "versions", versions)
    monkeypatch.setattr(rabbitmq_management, "descriptors", lambda url: found.descriptors)
    monkeypatch.setattr("orchestrix.persistence.schema.migrator.check", drift)
    monkeypatch.setattr("orchestrix.persistence.registry.registrations.counts", executors)
    monkeypatch.setattr("orchestrix.persistence.registry.groups.listed", made_groups)
    monkeypatch.setattr("orchestrix.persistence.dead_letters.page", page)
    monkeypatch.setattr("orchestrix.persistence.sagas.command_queues.recent_bursts", waves)
    monkeypatch.setattr("orchestrix.persistence.sagas.redelivered_commands.page", suspects)
    monkeypatch.setattr(ApiClient, "get", get)
    shell.set(ORCHESTRIX_DATABASE_URL="postgresql+asyncpg://u:geheim@h/d", ORCHESTRIX_BROKER_URL="amqp://u:geheim@mq/")
    shell.set(ORCHESTRIX_API_URL="http://127.0.0.1:8080")
    shell.set(ORCHESTRIX_RESOURCES="")  # to build an API costs more than all else
    return found


def checks(shell: Shell, code: int) -> dict[str, list[SimpleNamespace]]:
    """The findings that are not ok, by what they are about."""
    answer = shell("doctor", "-o", "json")
    assert answer.code == code, answer.out
    found: dict[str, list[SimpleNamespace]] = {}
    for item in answer.json["checks"]:
        if item["status"] != "ok":
            found.setdefault(item["what"], []).append(SimpleNamespace(**item))
    return found


def test_all_is_well(shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRIX_RESOURCES")
    answer = shell("doctor")
    assert answer.code == 0
    lines = [line.split()[:2] for line in answer.out.splitlines()]
    assert lines == [
        ["ok", what] for what in ("settings", "database", "schema", "broker", "sagas", "queues", "jobs", "git", "API")
    ]
    assert "checked: app (from ORCHESTRIX_SAGAS or orchestrix.toml)" in answer.out
    assert "geheim" not in answer.out


def test_modules_that_cannot_be_used_are_told_once_with_file_and_line(
    shell: Shell, parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_sick_saga.py").write_text("from orchestrix import Job\n\nBUILD = Job('build', timeout=30)\n")
    (tmp_path / "my_sick_job.py").write_text("from orchestrix import job\njob('x', grace='1')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(
        sys.modules["orchestrix.bootstrap"], "load_catalog", lambda settings: load_sagas(settings.sagas)
    )
    shell.set(ORCHESTRIX_SAGAS="my_sick_saga", ORCHESTRIX_WORKERS="my_sick_job")
    found = checks(shell, 1)
    assert list(found) == ["sagas", "workers"]
    assert [len(told) for told in found.values()] == [1, 1]
    assert "e.g. timeout=timedelta(seconds=30) (" in found["sagas"][0].detail
    assert found["sagas"][0].detail.endswith("/my_sick_saga.py, line 3)")
    assert found["workers"][0].detail.endswith("/my_sick_job.py, line 2)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_thing", "it imports 'no_such_thing'"),
        ("from tests.unit.api.test_resources import resource\nX = resource('/job')", "would be there twice"),
        (
            "from app import apps\nfrom orchestrix import Resource\nfrom pydantic import Field\n"
            "class Bad(apps.NewApp):\n    card: str = Field(exclude=True)\n"
            "X = Resource(apps.APPS.saga, '/apps', 'appName', Bad, apps.AppBody)\n",
            "Bad.card is excluded",
        ),
    ],
)
def test_resources_that_cannot_be_served_are_told_once(
    shell: Shell, parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "my_sick_api.py").write_text(text)
    (tmp_path / "orchestrix.toml").write_text('sagas = ["sagas.app_provisioning"]\nresources = ["my_sick_api"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_sick_api", raising=False)
    monkeypatch.delenv("ORCHESTRIX_RESOURCES")
    monkeypatch.setattr(sys.modules["orchestrix.bootstrap"], "load_catalog", load_catalog)
    found = checks(shell, 1)
    assert {what for what, told in found.items() if told[0].status == "fail"} == {"resources"}
    assert [said in one.detail for one in found["resources"]] == [True]


def test_an_absent_database_and_broker(shell: Shell, parts: Parts) -> None:
    parts.database.error = Unavailable("nobody listens")
    parts.broker.up = False
    found = checks(shell, 1)
    assert found["database"][0].status == found["broker"][0].status == "fail"
    assert found["database"][0].detail == "nobody listens"
    assert "connection refused" in found["broker"][0].detail
    assert "ORCHESTRIX_BROKER_URL" in found["broker"][0].fix


def test_a_database_that_takes_no_writes(shell: Shell, parts: Parts) -> None:
    parts.database.refuses = Unavailable("the database does not accept writes: it is read-only")
    (found,) = checks(shell, 1)["database"]
    assert (found.status, "does not accept writes" in found.detail) == ("fail", True)


def test_a_clock_that_went_back(shell: Shell, parts: Parts) -> None:
    parts.database.ahead = 61.2
    (found,) = checks(shell, 0)["clock"]
    assert (found.status, found.detail[:20]) == ("warn", "the clock went back:")
    assert "1 min 1 s ahead" in found.detail
    assert found.fix == (
        "set the clock right, or if it is right now do nothing: no wait is lost, and this ends within 1 min 1 s"
    )


def test_a_schema_that_is_behind(shell: Shell, parts: Parts) -> None:
    parts.schema_error = SchemaMismatch("run `orchestrix db upgrade`")
    assert "db upgrade" in checks(shell, 1)["schema"][0].detail


def test_a_schema_that_was_changed_by_hand(shell: Shell, parts: Parts) -> None:
    parts.drift = ["column apps.foo is in the database and not in this version", "more"]
    (found,) = checks(shell, 1)["schema"]
    assert "column apps.foo is in the database and not in this version and 1 more" in found.detail
    assert found.fix == "orchestrix db check"


def test_a_bug_in_a_check_does_not_hide_the_others(shell: Shell, parts: Parts) -> None:
    parts.database.error = ZeroDivisionError("oops")
    found = checks(shell, 1)
    assert list(found) == ["database"]
    assert "ZeroDivisionError" in found["database"][0].detail


def test_queues_without_readers_and_missing_ones(shell: Shell, parts: Parts) -> None:
    parts.broker.counts["cmd.registerApp"] = (31, 0)
    del parts.broker.counts["evt.stepFailed"]
    details = {finding.detail: finding.fix for finding in checks(shell, 0)["queues"]}
    assert details == {
        "cmd.registerApp: 31 ready, nobody reads it": "orchestrix worker -q cmd.registerApp",
        "evt.stepFailed does not exist yet": "orchestrix serve",
    }


def test_before_the_first_node_one_line_tells_of_all_queues(shell: Shell, parts: Parts) -> None:
    parts.broker.counts.clear()
    (found,) = checks(shell, 0)["queues"]
    assert found.fix == "orchestrix serve"
    assert found.detail.endswith(" more queues do not exist yet")


def test_missing_rights_and_the_line_that_gives_them(shell: Shell, parts: Parts) -> None:
    shell.set(ORCHESTRIX_BROKER_URL="amqp://joe:geheim@mq/shop%20floor")
    parts.broker.refusal = "ACCESS_REFUSED - configure access to queue 'x' in vhost 'shop floor' refused for user 'joe'"
    (found,) = checks(shell, 1)["rights"]
    assert found.detail == (
        "RabbitMQ's user 'joe' may not configure in virtual host 'shop floor' what nodes and workers need"
    )
    assert found.fix == "rabbitmqctl set_permissions -p 'shop floor' joe '.*' '.*' '.*'"
    parts.broker.problem = "403 ACCESS_REFUSED - access to vhost 'shop floor' refused for user 'joe'"
    parts.broker.up = False
    (found,) = checks(shell, 1)["broker"]
    assert found.fix == "rabbitmqctl set_permissions -p 'shop floor' joe '.*' '.*' '.*'"
    parts.broker.up = True
    parts.broker.refusal = "NOT_FOUND - no exchange 'orchestrator.events' in vhost '/'"
    assert "rights" not in checks(shell, 0), "a node makes it"


@pytest.mark.parametrize("what", ["ORCHESTRIX_DATABASE_URL", "ORCHESTRIX_BROKER_URL"])
def test_an_at_sign_in_a_password_is_no_unknown_host(shell: Shell, parts: Parts, what: str) -> None:
    scheme = "amqp" if "BROKER" in what else "postgresql+asyncpg"
    shell.set(**{what: f"{scheme}://u:ge@heim@h/d"})
    parts.broker.up = False
    found = checks(shell, 1)["broker" if "BROKER" in what else "database"]
    assert found[0].fix == "write an @ in a password as %40"
    assert "heim" not in found[0].detail


def test_a_copy_that_is_half_reset(shell: Shell, parts: Parts) -> None:
    parts.database.copied = SchemaMismatch("`orchestrix db clone-reset` has not come to its end: run it again")
    (found,) = checks(shell, 1)["installation"]
    assert (found.status, found.fix) == ("fail", "orchestrix db clone-reset")


def stuck_one(saga: str, id: int, **more: Any) -> dict[str, Any]:
    return {"saga": saga, "id": id, "key": f"k-{id}", "state": "PAYING", **more}


def test_what_is_stuck_over_all_sagas(shell: Shell, parts: Parts) -> None:
    items = [stuck_one("trip", 9), stuck_one("trip", 8), stuck_one("app", 1, sentence="paused by ada")]
    parts.answers["/stuck"] = lambda query: {"items": items}
    parts.answers["/sagas/trip/9/why"] = lambda query: {"sentence": "cmd.pay has 4 messages and no consumer."}
    app, trip = checks(shell, 0)["stuck"]
    assert (app.detail, app.fix) == (
        "saga app: 1 instance, as 1 'k-1' (PAYING): paused by ada",
        "orchestrix apps why 1",
    )
    assert trip.detail == "saga trip: 2 instances, as 9 'k-9' (PAYING): cmd.pay has 4 messages and no consumer."
    assert trip.fix == "orchestrix sagas why trip 9"
    assert "ok    API" in shell("doctor").out


@pytest.mark.parametrize(
    ("name", "said", "right"),
    [
        ("", "403 ACCESS_REFUSED - write access to exchange 'amq.default'", "write"),
        ("orchestrator.events", "ACCESS_REFUSED - access to exchange 'orchestrator.events'", "write"),
        ("cmd.registerApp", "ACCESS_REFUSED - read access to queue 'cmd.registerApp'", "read"),
        ("orchestrix.job.dispatch.gpu", "ACCESS_REFUSED - access to queue 'orchestrix.job.dispatch.gpu'", "read"),
    ],
)
def test_a_right_that_is_missing_on_one_name(shell: Shell, parts: Parts, name: str, said: str, right: str) -> None:
    parts.facts = JobFacts(not_started={"gpu": 1}, causes={"gpu": ("no worker", "start one")})
    parts.broker.denied[name] = f"{said} in vhost 'd' refused for user 'u'"
    if not name:
        parts.broker.full = "it would say so"
    (found,) = checks(shell, 1)["rights"]
    assert found.detail.startswith(f"RabbitMQ's user 'u' may not {right} in virtual host")
    assert found.detail.endswith(said.partition("access to ")[2])
    assert found.fix.startswith("rabbitmqctl set_permissions -p ")


def test_failed_jobs_are_a_warning_with_the_command_that_lists_them(shell: Shell, parts: Parts) -> None:
    at = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
    parts.facts = JobFacts(failed=[FailedJob("gpu", "render", "FAILED", at, {"type": "Broken", "message": "no card"})])
    (found,) = checks(shell, 0)["failed jobs"]
    said = "queue gpu, handler render: 1 job FAILED within the last hour, the last at 12:00:00Z: Broken: no card"
    assert (found.detail, found.fix) == (said, "orchestrix jobs list --state FAILED --queue gpu --handler render")


def test_failed_jobs_of_a_group_are_listed_by_group(shell: Shell, parts: Parts) -> None:
    at = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
    error = {"type": "NoExecutors", "message": "no executors available"}
    parts.facts = JobFacts(failed=[FailedJob(None, "render", "FAILED", at, error, "web shop")])
    (found,) = checks(shell, 0)["failed jobs"]
    assert found.detail.startswith("group web shop, handler render: 1 job FAILED within the last hour")
    assert found.fix == "orchestrix jobs list --state FAILED --group 'web shop' --handler render"


def test_attempts_that_no_executor_begins_are_a_warning(shell: Shell, parts: Parts) -> None:
    parts.facts = JobFacts(groups={"shop": (2, "group shop has no executor that takes jobs", "start one")})
    (found,) = [one for one in checks(shell, 0)["jobs"] if one.status == WARN]
    said = "group shop: 2 jobs dispatched but not started; group shop has no executor that takes jobs"
    assert (found.detail, found.fix) == (said, "start one")


@pytest.mark.parametrize(
    ("refusal", "fix"),
    [
        (Unavailable(FULL), "free space on its disk; nodes"),
        (Unavailable(LOCKED), "end the program or the transaction that holds the lock; nodes"),
        (Contention("another transaction holds it"), "end the program or the transaction that holds the lock; nodes"),
        (Unavailable("the database is unavailable: sorry, too many clients already"), "end clients that hold"),
        (Unavailable("the database is unavailable: (1040, 'Too many connections')"), "end clients that hold"),
        (Unavailable("the database does not accept writes"), "let it, this user and this session write; nodes"),
    ],
)
def test_a_full_or_locked_database(shell: Shell, parts: Parts, refusal: Exception, fix: str) -> None:
    parts.database.refuses = refusal
    (found,) = checks(shell, 1)["database"]
    assert found.detail.endswith(f": {refusal}")
    assert found.fix.startswith(fix)


@pytest.mark.parametrize(
    ("refusal", "fix"),
    [
        (Unavailable("the database is unavailable: sorry, too many clients already"), "ORCHESTRIX_DATABASE__POOL_SIZE"),
        (Contention("canceling statement due to lock timeout"), "end the program or the transaction that holds the"),
        (Unavailable("cannot connect to the database: connection refused"), None),
    ],
)
def test_a_database_that_is_full_or_locked_before_it_is_read(
    shell: Shell, parts: Parts, refusal: Exception, fix: str | None
) -> None:
    parts.database.error = refusal
    (found,) = checks(shell, 1)["database"]
    assert found.detail == str(refusal)
    assert (found.fix is None) if fix is None else (fix in found.fix)


def test_a_node_whose_connections_are_all_in_use(shell: Shell, parts: Parts) -> None:
    ill = {"component": "Database", "isHealthy": False, "reason": "no database connection became free in time"}
    parts.health = lambda: {"status": "unhealthy", "checks": [ill]}
    (found,) = checks(shell, 1)["API"]
    assert "ORCHESTRIX_DATABASE__POOL_SIZE" in found.fix


def test_a_command_without_a_handler_here_is_not_said_to_be_started_here(
    shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.broker.counts |= {"cmd.registerApp": (1, 0), "cmd.createGitRepo": (1, 0)}
    monkeypatch.setattr(command, "_handled", lambda settings: {"cmd.createGitRepo"})
    fixes = [found.fix for found in checks(shell, 0)["queues"]]
    assert fixes[0] == "orchestrix worker -q cmd.createGitRepo"
    assert fixes[1].startswith("start the worker that handles cmd.registerApp (no module here does: add its module to")


def test_a_bug_in_the_look_at_workers_is_a_finding_but_an_older_schema_none(
    shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: object) -> dict[str, str]:
        raise KeyError("facts")

    monkeypatch.setattr(command, "command_workers", broken)
    (found,) = checks(shell, 1)["broker"]
    assert "unexpected KeyError" in found.detail
    parts.schema_error = SchemaMismatch("run `orchestrix db upgrade`")
    assert list(checks(shell, 1)) == ["schema"]


def test_each_cause_is_a_finding_of_its_own(shell: Shell, parts: Parts) -> None:
    items = [
        stuck_one("trip", 9, blocker="no_consumer", step="pay", sentence="cmd.pay has no consumer."),
        stuck_one("trip", 8, blocker="paused", step="pay", sentence="paused by ada"),
        stuck_one("trip", 5, blocker="workers_died", step="fly", sentence="what the finding about deaths says"),
        stuck_one("trip", 7, blocker="no_consumer", step="pay", sentence="cmd.pay has no consumer."),
        stuck_one("trip", 6, blocker="no_consumer", step="fly", sentence="cmd.fly has no consumer."),
    ]
    parts.answers["/stuck"] = lambda query: {"items": items}
    assert [found.detail.partition(" (PAYING)")[0] for found in checks(shell, 0)["stuck"]] == [
        "saga trip: 1 instance, as 6 'k-6'",
        "saga trip: 2 instances, as 9 'k-9'",
        "saga trip: 1 instance, as 8 'k-8'",
    ]


@pytest.mark.parametrize("others", [1, 50])
def test_a_failed_undo_is_a_failure_whatever_else_is_stuck(shell: Shell, parts: Parts, others: int) -> None:
    broken = stuck_one("trip", 1, blocker="undo_failed", step="pay") | {"state": "COMPENSATION_FAILED"}
    items = [stuck_one("trip", id, blocker="no_consumer", step="pay") for id in range(9, 9 + others)]
    parts.answers["/stuck"] = lambda query: {"items": [*items, broken][: query["limit"]]}
    live = [{"version": 1, "live": {"PAYING": others, "COMPENSATION_FAILED": 1}}]
    parts.answers["/sagas"] = lambda query: {"items": [{"saga": "app"}, {"saga": "trip", "versions": live}]}
    parts.answers["/sagas/trip"] = lambda query: {"items": [broken] * (query["state"] == "COMPENSATION_FAILED")}
    parts.answers["/sagas/trip/1/why"] = lambda query: {"sentence": "The undo of step pay failed permanently."}
    found = checks(shell, 1)
    (undo,), (stuck,) = found["undo"], found["stuck"]
    assert (undo.status, undo.fix) == ("fail", "orchestrix sagas why trip 1")
    assert undo.detail.startswith("saga trip: 1 instance, as 1 'k-1' (COMPENSATION_FAILED): The undo of step pay")
    assert stuck.status == "warn"


def test_an_older_node_is_asked_saga_by_saga(shell: Shell, parts: Parts) -> None:
    def none(query: Any) -> Any:
        raise NotFound("There is no such thing")

    parts.answers["/stuck"] = none
    parts.answers["/sagas"] = lambda query: {"items": [{"saga": "app"}, {"saga": "trip"}]}
    parts.answers["/apps"] = lambda query: {"items": []}
    parts.answers["/sagas/trip"] = lambda query: {"items": [stuck_one("trip", 9)] if query["stuck"] == "true" else []}
    (found,) = checks(shell, 0)["stuck"]
    assert found.detail.startswith("saga trip: 1 instance, as 9")


def test_a_wrong_token_is_a_fault(shell: Shell, parts: Parts) -> None:
    def refused(query: Any) -> Any:
        raise ConfigError("Invalid token (correct ORCHESTRIX_API__TOKEN)")

    parts.answers["/stuck"] = refused
    (found,) = checks(shell, 1)["API"]
    assert "Invalid token (correct ORCHESTRIX_API__TOKEN)" in found.detail
    assert found.fix.startswith("export ORCHESTRIX_API__TOKEN=SECRET, one of those in the ORCHESTRIX_API__TOKENS=")


def test_dead_letters_and_unrouted_messages(shell: Shell, parts: Parts) -> None:
    parts.broker.counts |= {"evt.stepFailed.dead": (2, 0), "orchestrator.unrouted": (1, 0)}
    assert [finding.detail for finding in checks(shell, 0)["queues"]] == [
        "evt.stepFailed.dead: 2 dead letters that no orchestrator has moved yet",
        "orchestrator.unrouted: 1 message that no queue wanted and no orchestrator has moved yet",
    ]


def test_dead_letters_that_wait_for_a_person(shell: Shell, parts: Parts) -> None:
    parts.database.letters = [
        *[letter(n, queue="evt.stepFailed", reason="unknown-saga") for n in range(2)],
        letter(3, reason="not-json: x"),
    ]
    found = {finding.detail: finding.fix for finding in checks(shell, 0)["dead letters"]}
    unknown = "no node knows its saga: see ORCHESTRIX_SAGAS and orchestrix.toml"
    assert found == {
        f"evt.stepFailed: 2 unknown-saga ({unknown})": "orchestrix dlq list --queue evt.stepFailed",
        "evt.gitRepoCreated: 1 not-json": "orchestrix dlq list --queue evt.gitRepoCreated",
    }
    kinds = ["not-json: x", "not-json: y", "unrouted", "unknown-saga", "no-body", "too-deep"]
    parts.database.letters = [letter(n, reason=reason) for n, reason in enumerate(kinds)]
    (line,) = checks(shell, 0)["dead letters"]
    told = "2 not-json, 1 unrouted (look for a mistyped event name), 1 unknown-saga (no node knows its saga: see"
    assert line.detail == f"evt.gitRepoCreated: 6, of which {told} ORCHESTRIX_SAGAS and orchestrix.toml), 2 others"
    parts.database.letters = [letter(n) for n in range(300)]
    assert checks(shell, 0)["dead letters"][0].detail == "evt.gitRepoCreated: 200 or more not-json"
    parts.schema_error = SchemaMismatch("run `orchestrix db upgrade`")
    assert list(checks(shell, 1)) == ["schema"], "there may be no such table"


def test_a_wave_of_time_outs(shell: Shell, parts: Parts) -> None:
    parts.database.waves = [TimeoutBurst("cmd.pay", 12, datetime(2026, 1, 31, 12, 0, 7, tzinfo=UTC))]
    (found,) = checks(shell, 0)["time-outs"]
    assert found.detail == "12 steps of cmd.pay ran out of time within a minute, the last at 12:00:07Z"


def test_what_a_healthy_node_has_to_say(shell: Shell, parts: Parts) -> None:
    """As of dead letters that come too fast."""
    told = {"component": "Dead letters", "isHealthy": True, "reason": "too many come"}
    parts.health = lambda: {"status": "ready", "checks": [told, {"component": "Database", "isHealthy": True}]}
    (found,) = checks(shell, 0)["API"]
    assert (found.status, found.detail) == ("warn", "http://127.0.0.1:8080: Dead letters: too many come")


def room(shell: Shell) -> SimpleNamespace:
    """What is said of the broker's room for jobs."""
    items = shell("doctor", "-o", "json").json["checks"]
    return SimpleNamespace(**next(one for one in items if one["what"] == "jobs" and "max_live is" in one["detail"]))


def test_where_the_broker_does_not_tell_its_limits_it_is_said_where_to_look(shell: Shell, parts: Parts) -> None:
    found = room(shell)
    assert found.status == "ok"
    assert "jobs.max_live is 1,000: up to 4,000 queues, 12,000 file descriptors and 460 MB" in found.detail
    assert "rabbitmq-diagnostics status" in found.detail


def test_a_broker_with_too_few_descriptors_for_so_many_jobs(shell: Shell, parts: Parts) -> None:
    parts.descriptors = DescriptorUsage("rabbit@mq", 1024, 424)
    parts.facts = JobFacts(open=50)
    found = room(shell)
    assert (found.status, "rabbit@mq uses 424 of 1,024 descriptors" in found.detail) == ("warn", True)
    assert found.fix.endswith("or set ORCHESTRIX_JOBS__MAX_LIVE to 75 or less"), "those of the 50 are among the used"
    shell.set(ORCHESTRIX_JOBS__MAX_LIVE="75")
    assert room(shell).status == "ok"


def test_the_broker_of_dev_has_no_such_limit(shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    here = SimpleNamespace(broker_url="amqp://u:geheim@mq/", database_url="")
    monkeypatch.setattr("orchestrix.cli.devfile.read", lambda folder: here)
    assert "which the embedded broker has room for" in room(shell).detail


def test_jobs_that_nobody_takes_that_are_too_many_or_leave_queues_behind(shell: Shell, parts: Parts) -> None:
    parts.facts = JobFacts(
        open=1000,
        slots_taken=1000,
        not_started={"letters": 2, "reports": 3, "served": 1},
        causes={name: (f"{name} is busy", f"start {name}") for name in ("letters", "reports", "served")},
        ended=("j-1", "j-2"),
    )
    parts.broker.counts |= {
        "orchestrix.job.dispatch.reports": (3, 0),
        "orchestrix.job.dispatch.served": (1, 1),
        "orchestrix.job.j-2.logs": (4, 0),
    }
    found = {one.detail: one.fix for one in checks(shell, 0)["jobs"]}
    assert list(found) == [
        "queue letters: 2 jobs dispatched but not started; letters is busy",
        "queue reports: 3 jobs dispatched but not started; reports is busy",
        "1,000 are open, and no more than 1,000 may be: others wait",
        "1 queue of a job that has ended is still there (of 4 checked), as orchestrix.job.j-2.logs",
    ]
    assert list(found.values())[1] == "start reports"


def test_apps_with_too_many_executors_and_executors_without_a_group(shell: Shell, parts: Parts) -> None:
    parts.executors = {"full": 900, "shop": 899, "a b": 1, "crowd": 1000}
    parts.groups = ["full", "shop", "crowd", "quiet"]
    found = {one.detail: (one.status, one.fix) for one in checks(shell, 0)["registry"]}
    assert found == {
        "app a b: 1 executor registered, but no group, so that no job is routed there": (
            "warn", "orchestrix registry set 'a b' --auto"
        ),
        "app crowd: 1,000 executors, and more than 1,000 are refused": (
            "warn", "stop some, or divide them among several apps"
        ),
        "app full: 900 executors, and more than 1,000 are refused": (
            "warn", "stop some, or divide them among several apps"
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "here", "told"),
    [
        ({}, False, {"shop": "2 of 2", "names": "1 of 1"}),
        ({}, True, {"shop": "1 of 2"}),
        ({"allow": "10.0.0.0/8,127.0.0.1"}, False, {"shop": "1 of 2"}),
        ({"allow": "10.0.0.0/8,127.0.0.1", "token": "shop:1234567890abcdef"}, False, {}),
        ({"allow": "10.0.0.0/8,127.0.0.1", "token": "1234567890abcdef"}, False, {}),
        ({"allow": "10.0.0.0/8,127.0.0.1", "token": "other:1234567890abcdef"}, False, {"shop": "1 of 2"}),
        ({"allow": "192.0.2.0/24", "token": "1234567890abcdef"}, False, {"shop": "2 of 2"}),
    ],
)
async def test_addresses_that_no_node_calls(
    sqlite_url: str, settings: dict[str, Any], here: bool, told: dict[str, str]
) -> None:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    async with database.begin() as tx:
        await groups.set_addresses(tx, "shop", ["http://127.0.0.1:9999", "http://10.0.0.7:9999"], tx.now())
        await groups.set_addresses(tx, "names", ["http://exec-1.internal:9999"], tx.now())
        await groups.set_addresses(tx, "empty", [], tx.now())
    found = await calls(database, RegistrySettings(**settings), on_this_machine=here)
    await database.close()
    details = {one.detail.split()[1].rstrip(":"): one.detail for one in found}
    assert {app: " ".join(detail.split()[2:5]) for app, detail in details.items()} == told
    assert all(one.status == WARN and "ORCHESTRIX_REGISTRY__" in one.detail for one in found)


async def test_executors_are_counted_in_the_database(sqlite_url: str) -> None:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    beats = [Heartbeat(app, f"http://10.0.0.{n}:9999") for app in ("shop", "stray") for n in (7, 8)]
    async with database.begin() as tx:
        await registrations.record(tx, beats, tx.now())
        await groups.set_addresses(tx, "shop", None, tx.now())
    found = await registry(database)
    await database.close()
    assert [(one.status, one.fix) for one in found] == [(WARN, "orchestrix registry set stray --auto")]
    assert found[0].detail.startswith("app stray: 2 executors registered")


def test_a_blocked_broker(shell: Shell, parts: Parts) -> None:
    parts.broker.full = "low on disk"
    assert "low on disk" in checks(shell, 0)["broker"][0].detail


def test_a_check_of_an_author_that_breaks_is_one_finding(
    shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(functions, "registered_jobs", [])
    monkeypatch.setattr(module_loader, "registered_jobs", functions.registered_jobs)
    (shell.folder / "own_sick_check.py").write_text(
        "from pydantic import BaseModel\nfrom orchestrix import job\n"
        "class SETTINGS(BaseModel):\n    def check(self):\n        raise OSError('disk gone')\n"
        "@job('x')\ndef x(context): pass\n"
    )
    shell.set(ORCHESTRIX_WORKERS="own_sick_check")
    found = checks(shell, 1)
    assert list(found) == ["own_sick_check"]
    assert found["own_sick_check"][0].detail == "own_sick_check.SETTINGS.check raised OSError: disk gone"


def test_git_is_looked_for_only_where_it_is_needed(shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert INSTALL in checks(shell, 1)["git"][0].fix
    shell.set(ORCHESTRIX_GIT__PROVIDER="simulated")
    assert checks(shell, 0) == {}


def test_an_ill_api_says_why(shell: Shell, parts: Parts) -> None:
    ill = {"component": "Broker", "isHealthy": False, "reason": "it is away"}
    parts.health = lambda: {"status": "unhealthy", "checks": [ill, {"component": "Database", "isHealthy": True}]}
    assert checks(shell, 1)["API"][0].detail == "http://127.0.0.1:8080 is not healthy: Broker: it is away"


def test_an_api_that_nobody_named_is_not_looked_for(
    shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise Unavailable("no API answers")

    parts.health = absent
    assert checks(shell, 1)["API"][0].status == "fail"
    monkeypatch.delenv("ORCHESTRIX_API_URL")
    (found,) = checks(shell, 0)["API"]
    assert (found.status, "ORCHESTRIX_API_URL" in found.detail) == ("warn", True)


def test_settings_that_are_wrong_or_unknown(shell: Shell, parts: Parts) -> None:
    shell.set(ORCHESTRIX_BROKER_ULR="x")
    assert "ORCHESTRIX_BROKER_URL" in checks(shell, 0)["settings"][0].detail
    shell.set(ORCHESTRIX_HTTP__PORT="x")
    found = checks(shell, 1)
    assert list(found) == ["settings"]
    assert "ORCHESTRIX_HTTP__PORT" in found["settings"][0].detail


def test_nothing_is_named(shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRIX_DATABASE_URL")
    monkeypatch.delenv("ORCHESTRIX_BROKER_URL")
    found = checks(shell, 1)
    assert "ORCHESTRIX_DATABASE_URL" in found["database"][0].detail
    assert "ORCHESTRIX_BROKER_URL" in found["broker"][0].detail


def test_a_check_that_hangs_is_given_up(shell: Shell, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def for_ever(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeDatabase, "ping", for_ever)
    monkeypatch.setattr(command, "CHECK_TIMEOUT_S", 0.05)
    assert "no answer within" in checks(shell, 1)["database"][0].detail


async def test_the_number_of_queues_is_that_of_the_catalog() -> None:
    [good] = await queues.queues(FakeBroker(), CATALOG)  # type: ignore[arg-type]
    assert good.detail == "10 queues, all are read"


@pytest.mark.parametrize(("component", "phase"), [("Start", "starting"), ("Stop", "stopping")])
def test_what_a_node_lacks_that_only_starts_or_stops_is_no_fault(
    shell: Shell, parts: Parts, component: str, phase: str
) -> None:
    bad = [{"component": component, "isHealthy": False, "reason": "so"}, {"component": "Broker", "isHealthy": False}]
    parts.health = lambda: {"status": "not ready", "checks": bad}
    parts.broker.counts["cmd.registerApp"] = (31, 0)
    parts.facts = JobFacts(not_started={"letters": 2}, causes={"letters": ("nobody is there", "start one")})
    found = checks(shell, 0)
    wait = "wait until it has, and look again"
    (api,), (queue,), (jobs,) = found["API"], found["queues"], found["jobs"]
    assert (api.status, api.fix) == ("warn", wait)
    assert api.detail == f"http://127.0.0.1:8080 is {phase}: {component}: so; Broker: no"
    assert (queue.detail, queue.fix) == (f"cmd.registerApp: 31 ready, nobody reads it (the node is {phase})", wait)
    assert (jobs.detail.endswith(f"nobody is there (the node is {phase})"), jobs.fix) == (True, wait)


def test_what_is_away_is_a_fault_also_while_a_node_stops(shell: Shell, parts: Parts) -> None:
    parts.health = lambda: {"checks": [{"component": "Stop", "isHealthy": False}]}
    parts.database.error = Unavailable("nobody listens")
    assert checks(shell, 1)["database"][0].status == "fail"


def test_what_live_instances_need_of_other_versions(shell: Shell, parts: Parts) -> None:
    parts.versions = [
        CheckResult(WARN, "versions", "saga order version 1, 3 live: it is neither stored nor in this code")
    ]
    (found,) = checks(shell, 0)["versions"]
    assert found.detail.startswith("saga order version 1, 3 live")


def test_a_worker_with_places_that_do_not_come_back(shell: Shell, parts: Parts) -> None:
    parts.facts = JobFacts(lost={"w-1": 2})
    (found,) = checks(shell, 0)["workers"]
    assert (found.detail, found.fix) == ("w-1: 2 places are taken by functions that do not end", "restart it")


def test_a_queue_without_readers_names_its_last_worker(shell: Shell, parts: Parts) -> None:
    parts.broker.counts["cmd.registerApp"] = (31, 0)
    parts.workers = {"cmd.registerApp": " (its worker w-1 on host-1: last heartbeat 4 min ago, 3 in progress)"}
    (found,) = checks(shell, 0)["queues"]
    assert found.detail == f"cmd.registerApp: 31 ready, nobody reads it{parts.workers['cmd.registerApp']}"
    assert found.fix == "orchestrix worker -q cmd.registerApp"


async def test_the_last_worker_of_each_command_queue(sqlite_url: str) -> None:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    beats = [
        WorkerHeartbeatRow("w-1", [], 0, facts=WorkerFacts("host-1", "1", ["cmd.a", "cmd.b"], 3), ago_s=240.0),
        WorkerHeartbeatRow("w-2", ["reports"], 0, facts=WorkerFacts(None, None, ["cmd.b"]), ago_s=7.0),
        WorkerHeartbeatRow("w-3", [], 0, facts=WorkerFacts("host-3", "1", ["cmd.c"], 3), ago_s=700.0),
        WorkerHeartbeatRow("w-4", ["reports"], 0),
    ]
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, beats))
    found = await queues.command_workers(database)
    await database.close()
    assert found.keys() == {"cmd.a", "cmd.b"}
    assert found["cmd.a"].startswith(" (its worker w-1 on host-1: last heartbeat 4 min")
    assert found["cmd.a"].endswith(" ago, 3 in progress)")
    assert found["cmd.b"].startswith(" (its worker w-2: last heartbeat ")
