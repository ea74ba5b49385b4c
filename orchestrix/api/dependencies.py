"""Dependencies: what the handlers need from the rest of the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from orchestrix.api.origin_guard import OriginGuard
from orchestrix.api.stream_limits import Streams
from orchestrix.dead_letters.service import DeadLetterService
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.nodes import NodeRow
from orchestrix.engine.actions import Action, ActionResult
from orchestrix.engine.requests import IdempotencyKey, Keyed, Repeated, StartRequest, StartResult
from orchestrix.jobs.submission import JobRequest, JobRequestKey, Submitted
from orchestrix.lifecycle import Health
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.instances import After, InstanceFilter
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga
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


class Stuck(Protocol):
    """Knows which sagas wait for more than their own worker."""

    async def page(
        self, saga: Saga, wanted: InstanceFilter, sort: str, limit: int, after: After | None
    ) -> list[Instance]:
        """Up to `limit` of them, or of the others, as `wanted.stuck` says. Raises `Unavailable`."""


class Surroundings(Protocol):
    """Knows how the broker is."""

    @property
    def trouble(self) -> str | None:
        """Why it cannot be used, if it cannot."""

    async def empty(self, queues: Iterable[str], *, fresh: float = 0.0) -> set[str]:
        """Those of the queues that have nothing ready, or are not there, as it was at most `fresh` seconds ago."""


class Redispatcher(Protocol):
    """Sends again, under its old id, what live sagas have out."""

    async def redispatch(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, *, actor: str, reason: str
    ) -> int:
        """How many commands will be sent; None means all. Raises `NotFound` and `Unavailable`."""

    async def redispatch_once(
        self, sagas: Sequence[str] | None, ids: Sequence[int] | None, *, actor: str, reason: str, key: Keyed[int]
    ) -> int | Repeated:
        """The same, with the stored answer where `key` has one."""


class Submitter(Protocol):
    """Puts jobs down. A caller that goes away does not undo what it has asked for."""

    async def submit(self, order: JobRequest, key: JobRequestKey | None = None) -> Submitted:
        """Raises `Unavailable` (nothing was written) and `OutcomeUnknown`."""


class Canceller(Protocol):
    """Stops jobs."""

    async def cancel(self, job_id: str, reason: str) -> JobRow:
        """Raises `NotFound`, `Conflict` and `Unavailable`."""


class Drainer(Protocol):
    """Lets nodes give away what they have."""

    async def drain(self, node_id: str) -> NodeRow:
        """Raises `NotFound`, `Conflict` and `Unavailable`."""


class JobWatch(Protocol):
    """Lets a handler sleep until a job may have changed."""

    async def changed(self, job_id: str, timeout: float) -> None:
        """Returns once it may have, or `timeout` seconds have gone by."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that a handler may use."""

    database: Database
    catalog: Catalog
    starter: Starter
    watch: Watch
    control: Control
    explainer: Explainer
    stuck: Stuck
    surroundings: Surroundings
    redispatcher: Redispatcher
    letters: DeadLetterService
    submitter: Submitter
    canceller: Canceller
    job_watch: JobWatch
    drainer: Drainer
    timetable: ScheduleService
    health: Health
    version: str
    silent: float
    """Seconds without a beat after which a worker's attempts are lost."""
    guard: OriginGuard = field(default_factory=OriginGuard)
    streams: Streams = field(default_factory=lambda: Streams(1000))
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The secrets by the names of those who have them; without any, everybody may do everything."""
    resources: Sequence[Resource] = ()
