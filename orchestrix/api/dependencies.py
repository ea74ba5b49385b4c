"""Dependencies: what the handlers need from the rest of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from orchestrix.api.guards.origin_guard import OriginGuard
from orchestrix.api.guards.stream_limits import Streams
from orchestrix.api.traces.links import NO_LINKS, LinkTemplates
from orchestrix.api.traces.reader import TraceReader
from orchestrix.cluster.drain_requests import DrainRequester
from orchestrix.dead_letters.service import DeadLetterService
from orchestrix.domain.shards.state import ShardRules
from orchestrix.engine.broker_status import BrokerStatus
from orchestrix.engine.control import Action, ActionResult
from orchestrix.engine.explain.stuck import StuckSagas
from orchestrix.engine.requests import IdempotencyKey, Keyed, Repeated, StartRequest, StartResult
from orchestrix.jobs.cancellation import JobCanceller
from orchestrix.jobs.change_notifier import JobChangeNotifier
from orchestrix.jobs.executors.reports import ExecutorReports
from orchestrix.jobs.retry import JobRetrier
from orchestrix.jobs.submission import JobSubmitter
from orchestrix.lifecycle import Health
from orchestrix.persistence.engine import Database
from orchestrix.registry.services import ExecutorRegistry
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import Instance
from orchestrix.schedules.service import ScheduleService


class Starter(Protocol):
    """Starts sagas. A caller that goes away does not undo what it has asked for."""

    async def start(self, request: StartRequest) -> StartResult:
        """Raises `Unavailable` (nothing was written) and `OutcomeUnknown`."""


class Watch(Protocol):
    """Lets a handler sleep until a saga has moved."""

    async def changed(self, saga: str, instance_id: int, since_version: int, timeout: float) -> None:
        """Returns once the instance may have passed `since_version`, or `timeout` seconds have gone by."""


class Control(Protocol):
    """Does what a person asks of a saga. A caller that goes away does not undo what it has asked for."""

    async def act(self, action: Action) -> ActionResult:
        """Raises `NotFound`, `RefusedVerb`, `VersionMismatch`, `BadData`, `Unavailable` and `OutcomeUnknown`."""

    async def act_once(self, action: Action, key: IdempotencyKey) -> ActionResult | Repeated:
        """The same, with the stored answer where `key` has one."""


class Explanation(Protocol):
    """What a saga waits for: a code, a sentence, what helps, and since and until when, where that is known."""

    @property
    def blocker(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def next_action(self) -> str: ...
    @property
    def since(self) -> datetime | None: ...
    @property
    def next_at(self) -> datetime | None: ...


class Explainer(Protocol):
    """Knows what each saga waits for."""

    async def why(self, saga: str, id: int) -> Explanation:
        """Raises `NotFound` and `Unavailable`."""

    async def several(self, found: Sequence[Instance]) -> Sequence[Explanation | None]:
        """The same of each of these stuck instances; None for one that is gone by now. Raises `Unavailable`."""


class Redispatcher(Protocol):
    """Sends again, under its old id, what live sagas have out."""

    async def redispatch(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, *, actor: str, reason: str
    ) -> int:
        """How many commands will be sent; None means all. Raises `NotFound` and `Unavailable`."""

    async def count(self, sagas: Sequence[str] | None, ids: Sequence[int] | None) -> int:
        """How many would be sent now; nothing is changed. Raises the same."""

    async def redispatch_once(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, *, actor: str, reason: str, key: Keyed[int]
    ) -> int | Repeated:
        """The same, with the stored answer where `key` has one."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that a handler may use."""

    database: Database
    catalog: Catalog
    starter: Starter
    watch: Watch
    control: Control
    explainer: Explainer
    stuck: StuckSagas
    broker_status: BrokerStatus
    redispatcher: Redispatcher
    dead_letters: DeadLetterService
    submitter: JobSubmitter
    canceller: JobCanceller
    retrier: JobRetrier
    job_watch: JobChangeNotifier
    drain_requester: DrainRequester
    timetable: ScheduleService
    registry: ExecutorRegistry
    reports: ExecutorReports
    health: Health
    version: str
    silent: float
    """Seconds without a heartbeat after which a worker's attempts are lost."""
    guard: OriginGuard = field(default_factory=OriginGuard)
    streams: Streams = field(default_factory=lambda: Streams(1000))
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The secrets by the names of those who have them; without any, everybody may do everything."""
    resources: Sequence[Resource] = ()
    links: LinkTemplates = NO_LINKS
    """Where other tools show traces and logs."""
    trace_reader: TraceReader | None = None
    """The traces that this machine keeps, if it does."""
    trace_endpoint: str | None = None
    """Where traces are sent, if they are."""
    shard_rules: ShardRules = field(default_factory=ShardRules)
    """By which rules nodes divide shards; all nodes have the same."""
    gzip: bool = False
    """Whether longer answers are compressed for clients that ask for it."""
