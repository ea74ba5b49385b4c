"""What do the tests of the API stand on?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, Final, cast

import httpx
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from app.apps import APPS
from orchestrix import COMPLETED, NothingToUndo, Saga, Step, clock
from orchestrix.api.app import build
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.guards.origin_guard import OriginGuard
from orchestrix.api.guards.stream_limits import Streams
from orchestrix.api.resources.routes import served
from orchestrix.api.sagas.models import models
from orchestrix.api.traces.links import NO_LINKS, LinkTemplates
from orchestrix.api.traces.reader import TraceReader
from orchestrix.cluster.drain_requests import DrainRequester
from orchestrix.config.registry import RegistrySettings
from orchestrix.config.settings import JobsSettings
from orchestrix.dead_letters.service import DeadLetterService
from orchestrix.domain.registry.addresses import AllowList
from orchestrix.domain.shards.state import ShardRules
from orchestrix.engine.broker_status import BrokerStatus
from orchestrix.engine.control import Action, ActionResult
from orchestrix.engine.explain.stuck import StuckSagas
from orchestrix.engine.requests import (
    ExistingSaga,
    IdempotencyKey,
    Keyed,
    KeyReused,
    Repeated,
    Replayed,
    StartedSaga,
    StartRequest,
    StartResult,
)
from orchestrix.errors import ConflictError, NotFound
from orchestrix.jobs.cancellation import JobCanceller
from orchestrix.jobs.change_notifier import JobChangeNotifier
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.executors.reports import ExecutorReports
from orchestrix.jobs.retry import JobRetrier
from orchestrix.jobs.submission import JobSubmitter
from orchestrix.lifecycle import Health
from orchestrix.persistence.engine import Database
from orchestrix.persistence.idempotency import StoredAnswer
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.registry.address_check import AddressCheck
from orchestrix.registry.directory import RegistryDirectory
from orchestrix.registry.group_control import GroupControl
from orchestrix.registry.node_listeners import NodeListeners
from orchestrix.registry.registrar import Registrar
from orchestrix.registry.router import ExecutorRouter
from orchestrix.registry.services import ExecutorRegistry
from orchestrix.resource import Resource
from orchestrix.saga.advance import advance
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition, TransitionInputs
from orchestrix.saga.messages import Event
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart, numbered, start
from orchestrix.schedules.service import ScheduleService
from sagas.app_provisioning import APP_PROVISIONING
from tests.fakes.broker import FakeBroker


class Order(BaseModel):
    """The data of the saga `order`."""

    model_config = ConfigDict(extra="forbid")

    amount: int = 0


ORDER = Saga(
    name="order",
    data=Order,
    steps=(
        Step("pay", "UNPAID", "cmd.pay", "evt.paid", "PAID", undo=NothingToUndo("nothing was sent")),
        Step("ship", "PAID", "cmd.ship", "evt.shipped", COMPLETED, undo=NothingToUndo("it is gone")),
    ),
)
SILENT = JobsSettings().silent
CATALOG = Catalog([APP_PROVISIONING, ORDER])
(SERVED_APPS,) = served([APPS], CATALOG)
AppPage, AppPreview = SERVED_APPS.page, SERVED_APPS.preview
SagaBody, SagaPage, SagaPreview = models([APPS])


class FakeStarter:
    """Starts sagas one by one in the tests' database, or answers what it was told to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: list[StartRequest] = []
        self.answer: StartResult | Exception | None = None
        self.hold: asyncio.Event | None = None
        self._stored: dict[tuple[str, str], StoredAnswer] = {}

    async def start(self, request: StartRequest) -> StartResult:
        """As the real one, but without coalescing."""
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or await self._start(request)

    async def _start(self, request: StartRequest) -> StartResult:
        key = request.idempotency
        if key and (stored := self._stored.get((key.scope, key.key))):
            return Replayed(stored) if stored.fingerprint == key.fingerprint else KeyReused()
        try:
            instance = await self._world.start(request.saga, request.start)
        except ConflictError:
            return ExistingSaga(await self._world.id_of(request.saga, request.start.key))
        if key:
            self._stored[key.scope, key.key] = key.render(instance)
        return StartedSaga(instance)


class FakeWatch:
    """Wakes at once whoever waits for an instance that a test has moved; counts who waits."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, int, int]] = []
        self.calls = 0
        self.versions: dict[tuple[str, int], int] = {}
        self._moved = asyncio.Event()

    async def changed(self, saga: str, instance_id: int, since_version: int, timeout: float) -> None:
        """Returns at the next `wake`, at once for an older version, or after `timeout` seconds."""
        self.calls += 1
        if self.versions.get((saga, instance_id), 0) > since_version:
            return
        self.waiting.append((saga, instance_id, since_version))
        try:
            async with asyncio.timeout(timeout):
                await self._moved.wait()
        except TimeoutError:
            return
        finally:
            self.waiting.remove((saga, instance_id, since_version))

    def wake(self) -> None:
        """Lets everybody look again."""
        self._moved.set()
        self._moved = asyncio.Event()


class FakeControl:
    """Keeps what it is asked, and answers what it was told to."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.keys: list[IdempotencyKey] = []
        self.answer: ActionResult | Exception | None = None
        self.repeated: Repeated | None = None

    async def act_once(self, action: Action, key: IdempotencyKey) -> ActionResult | Repeated:
        """The same, or what was laid ready for a key that came before."""
        self.keys.append(key)
        return self.repeated or await self.act(action)

    async def act(self, action: Action) -> ActionResult:
        """The answer that was laid ready."""
        self.actions.append(action)
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


@dataclass(frozen=True)
class Because:
    """Why a saga waits."""

    blocker: str
    sentence: str
    next_action: str
    since: datetime | None = None
    next_at: datetime | None = None


class FakeExplainer:
    """Knows the reasons that it was told."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Because] = {}

    async def why(self, saga: str, id: int) -> Because:
        """The reason; raises `NotFound`."""
        if (saga, id) not in self.known:
            raise NotFound(f"there is no {saga} {id}")
        return self.known[saga, id]

    async def several(self, found: Sequence[Instance]) -> list[Because | None]:
        """The reasons that are known."""
        return [self.known.get((one.saga, one.id)) for one in found]


class FakeRedispatcher:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[str] | None, Sequence[int] | None, str, str]] = []
        self.keys: list[Keyed[int]] = []

    async def redispatch(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, *, actor: str, reason: str
    ) -> int:
        """One command for each id, else 7."""
        self.asked.append((sagas, ids, actor, reason))
        return 7 if ids is None else len(ids)

    async def count(self, sagas: Sequence[str] | None, ids: Sequence[int] | None) -> int:
        """As many as `redispatch` would send."""
        return 7 if ids is None else len(ids)

    async def redispatch_once(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, *, actor: str, reason: str, key: Keyed[int]
    ) -> int | Repeated:
        """The same, for a key that never came before."""
        self.keys.append(key)
        return await self.redispatch(sagas, ids, actor=actor, reason=reason)


@dataclass
class World:
    """The API over a database of its own, with parts behind it that tests can steer."""

    database: Database
    resources: Sequence[Resource] = (APPS,)
    links: LinkTemplates = NO_LINKS
    trace_reader: TraceReader | None = None
    trace_endpoint: str | None = None
    health: Health = field(default_factory=Health)
    watch: FakeWatch = field(default_factory=FakeWatch)
    control: FakeControl = field(default_factory=FakeControl)
    explainer: FakeExplainer = field(default_factory=FakeExplainer)
    redispatcher: FakeRedispatcher = field(default_factory=FakeRedispatcher)
    pokes: list[None] = field(default_factory=list)
    """One for each time that the relay was told to look into the outbox."""
    due: list[None] = field(default_factory=list)
    """One for each time that the leader was told of a job that is due."""
    stops: list[StopRequest] = field(default_factory=list)
    """Attempts whose workers were told to stop."""
    noticed: list[tuple[str, str]] = field(default_factory=list)
    """The owner and the job of each first report that owners were notified of."""
    job_watch: JobChangeNotifier = field(default_factory=JobChangeNotifier)
    broker: FakeBroker = field(default_factory=FakeBroker)
    registry_settings: RegistrySettings = field(default_factory=RegistrySettings)
    shard_rules: ShardRules = field(default_factory=ShardRules)
    registry: ExecutorRegistry = field(init=False)
    starter: FakeStarter = field(init=False)
    app: FastAPI = field(init=False)
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.starter = FakeStarter(self)
        self.registry = _registry(self.database, self.registry_settings)
        self.health.started = True
        self.app = _common_app(self.context()) if self.resources == (APPS,) else self.built()
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    def built(
        self, guard: OriginGuard | None = None, streams: int = 1000, gzip: bool = False, **tokens: str
    ) -> FastAPI:
        """The application; it asks for these tokens, and lets nobody have more than so many streams."""
        return build(self.context(guard, streams, gzip, tokens))

    def context(
        self,
        guard: OriginGuard | None = None,
        streams: int = 1000,
        gzip: bool = False,
        tokens: Mapping[str, str] = MappingProxyType({}),
    ) -> ApiContext:
        """What the application of `built` stands on."""
        return ApiContext(
            database=self.database,
            catalog=CATALOG,
            starter=self.starter,
            watch=self.watch,
            control=self.control,
            explainer=self.explainer,
            stuck=StuckSagas(self.database, self.broker, SILENT),
            broker_status=BrokerStatus(self.broker),
            redispatcher=self.redispatcher,
            dead_letters=DeadLetterService(self.database, CATALOG, lambda: self.pokes.append(None)),
            submitter=JobSubmitter(self.database, lambda: self.due.append(None)),
            canceller=JobCanceller(self.database, self.stops.extend, self.job_watch.notify),
            retrier=JobRetrier(self.database, self.job_watch.notify, lambda: self.due.append(None)),
            job_watch=self.job_watch,
            drain_requester=DrainRequester(self.database, self.broker),
            timetable=ScheduleService(self.database, lambda: self.due.append(None), self.stops.extend),
            registry=self.registry,
            reports=ExecutorReports(self.database, self.broker, self.notify_owner),
            health=self.health,
            version="1.2.3",
            resources=self.resources,
            silent=SILENT,
            tokens=tokens,
            guard=guard or OriginGuard(),
            streams=Streams(streams),
            shard_rules=self.shard_rules,
            gzip=gzip,
            links=self.links,
            trace_reader=self.trace_reader,
            trace_endpoint=self.trace_endpoint,
        )

    async def notify_owner(self, owner: str, job_id: str) -> None:
        """An executor has reported a job of that node."""
        self.noticed.append((owner, job_id))

    async def start(self, saga: str, wanted: SagaStart) -> Instance:
        """A new instance with its history; raises `ConflictError` if the name is taken."""
        definition, pair = _saga(saga), saga_tables_of(saga)
        moved = start(definition, wanted, clock.uuid7(), clock.now())
        async with self.database.begin() as tx:
            (new_id,) = await instances.insert(tx, pair, [moved])
            if new_id is None:
                raise ConflictError("the name is taken")
            moved = numbered(definition, moved, new_id)
            await history.insert(tx, pair, [(new_id, change) for change in moved.history])
        return moved.instance

    async def started(self, key: str = "billing", saga: str = "app", **wanted: Any) -> Instance:
        """A new instance."""
        data = {"created_by": "ada", "correlation_id": "c-1", "data": {}, **wanted}
        return await self.start(saga, SagaStart(key=key, **data))

    async def advance(self, instance: Instance, event: str, **more: Any) -> Instance:
        """What `event` makes of `instance`, committed and announced."""
        happened = Event(event, instance.id, instance.correlation_id, None, "e-1", instance.command_id, {}, **more)
        moved = advance(_saga(instance.saga), instance, happened, TransitionInputs(clock.now(), clock.uuid7()))
        assert isinstance(moved, SagaTransition)
        await self.store(instance, moved)
        return moved.instance

    async def store(self, before: Instance, moved: SagaTransition) -> None:
        """Commits `moved` and wakes the watch."""
        pair, after = saga_tables_of(before.saga), moved.instance
        async with self.database.begin() as tx:
            assert await instances.update(tx, pair, [(before.version, after)]) == {after.id}
            await history.insert(tx, pair, [(after.id, change) for change in moved.history])
        self.watch.versions[after.saga, after.id] = after.version
        self.watch.wake()

    async def completed(self, key: str = "billing") -> Instance:
        """An app at the end of a good run."""
        instance = await self.advance(await self.started(key), "evt.gitRepoCreated")
        return await self.advance(instance, "evt.appRegistered")

    async def id_of(self, saga: str, key: str) -> int | None:
        """The id of the instance of that name."""
        async with self.database.read() as connection:
            found = await instances.by_key(connection, saga_tables_of(saga), saga, key)
        return found.id if found else None


def _registry(database: Database, settings: RegistrySettings) -> ExecutorRegistry:
    """The registry of a node at 127.0.0.1:8080 whose settings are these."""
    listeners = NodeListeners(database, "node-1", "127.0.0.1", 8080)
    return ExecutorRegistry(
        settings,
        Registrar(database, gather_s=0.01),
        RegistryDirectory(database, settings),
        ExecutorRouter(database),
        GroupControl(database),
        AddressCheck(
            database, AllowList.parse(settings.allow or ("127.0.0.0/8", "10.0.0.0/8")), listeners.own, settings.dead
        ),
        listeners,
    )


def _saga(name: str) -> Saga:
    saga = CATALOG.saga(name)
    assert saga is not None
    return saga


class Current:
    """The parts of the latest world, where only one is in use at a time."""

    def __init__(self, of: Callable[[], Any]) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of(), name)


class CurrentContext(Current):
    """Likewise; what is built for all of them keeps no part of one."""

    latest: ApiContext

    def __init__(self) -> None:
        super().__init__(lambda: self.latest)
        self.health = Current(lambda: self.latest.health)


_CONTEXT: Final = CurrentContext()


def _common_app(context: ApiContext) -> FastAPI:
    """The application, over this context from now on. To build it takes longer than most tests."""
    _CONTEXT.latest = context
    return _built_once()


@cache
def _built_once() -> FastAPI:
    return build(cast(ApiContext, _CONTEXT))


class Exchange:
    """One request that is driven by hand, so that a test sees what is read and what is sent, and when."""

    def __init__(self, app: FastAPI, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> None:
        self._app = app
        where, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": where,
            "raw_path": where.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.read = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self._task: asyncio.Task[None] | None = None

    def give(self, body: bytes = b"", more: bool = False) -> None:
        """Puts a part of the request's body within reach."""
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self) -> None:
        """The client goes away."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def __aenter__(self) -> Exchange:
        self._task = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def done(self) -> Exchange:
        """Waits until the application has nothing more to do."""
        assert self._task is not None
        async with asyncio.timeout(5):
            await self._task
        return self

    @property
    def events(self) -> list[dict[str, str]]:
        """The complete server-sent events so far, comments and `retry` left out."""
        blocks = self.body.decode().split("\n\n")[:-1]
        parsed = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
        return [event for event in parsed if "data" in event]

    async def _receive(self) -> dict[str, Any]:
        message = await self._incoming.get()
        self.read += len(message.get("body", b""))
        return message

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)
