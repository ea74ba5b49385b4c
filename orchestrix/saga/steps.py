"""Steps: a step of a saga as data, with its retry policy, job and compensation, checked for completeness."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Final

from orchestrix.saga.job_targets import GROUP_TIMEOUT_MS, BroadcastEnd, JobTarget, Routing, Strategy
from orchestrix.saga.validation.arguments import (
    REASON,
    SPAN,
    TEN_YEARS,
    TEXT,
    TEXTS,
    WHOLE,
    ArgumentKind,
    brief,
    demand,
    listed,
    of,
    perhaps,
    span_of,
)
from orchestrix.saga.validation.names import normal
from orchestrix.saga.validation.signatures import made_as

from .errors import DefinitionError

COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
COMPENSATING: Final = "COMPENSATING"
COMPENSATION_FAILED: Final = "COMPENSATION_FAILED"
TERMINAL: Final = frozenset({COMPLETED, FAILED})
RESERVED: Final = frozenset({COMPLETED, FAILED, COMPENSATING, COMPENSATION_FAILED})
STEP_FAILED: Final = "evt.stepFailed"
STEP_STARTED: Final = "evt.stepStarted"
CREATED: Final = "created"
IMMEDIATE: Final = "immediate"
UNDONE: Final = "undone"
UNDO_FAILED: Final = "undo failed"
AGAIN: Final = "retry"
BY_HAND: Final = "retry or skip"
GIVEN_UP: Final = "skip or terminate"
HOLD: Final = "hold"
"""What `Step(on_failure=…)` takes: a step that has failed permanently waits for a person, and is not undone."""

_STATE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
_STEP = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,39}")
_COMMAND = re.compile(r"cmd\.[a-zA-Z][a-zA-Z0-9_.-]{0,99}")
_EVENT = re.compile(r"evt\.[a-zA-Z][a-zA-Z0-9_.-]{0,99}")
_NAME = "a letter, then letters, digits, ., - and _, at most 100 in all"
_DEAD = ".dead"
_QUEUE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_DEFAULT_QUEUE = "default"
_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+):[1-9][0-9]{0,4}")
_MAX_ADDRESS = 255
_GROUP_TIMEOUT = timedelta(milliseconds=GROUP_TIMEOUT_MS)
_MAX_ATTEMPTS = 1000
"""The id of each try of a step is stored in its saga's row while the step is pending."""
MIN_TIMEOUT = timedelta(milliseconds=1)
MAX_TIMEOUT = timedelta(seconds=TEN_YEARS)
_MINUTE = timedelta(seconds=60)


def require(holds: bool, otherwise: str) -> None:
    """Raises `DefinitionError` with the sentence `otherwise` unless it holds."""
    if not holds:
        raise DefinitionError(otherwise)


@made_as("RetryPolicy(attempts=3, base=timedelta(seconds=2))")
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is tried before its failure counts.

    `attempts` includes the first one, and is at most 1,000. The wait before attempt n is drawn from [0, min(cap, base *
    2 ** (n - 2))], which is called full jitter. An error whose type is among `never` is not tried again, whatever the
    worker requests.
    """

    attempts: int = 5
    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=5)
    never: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "never", listed(self.never))
        demand(self, attempts=WHOLE, base=SPAN, cap=SPAN, never=TEXTS)
        tried = f"RetryPolicy(attempts={brief(self.attempts)}): the first attempt counts too"
        require(1 <= self.attempts <= _MAX_ATTEMPTS, f"{tried}, so use 1 to {_MAX_ATTEMPTS}")
        base, cap = (span_of(f"{one.total_seconds():g}") for one in (self.base, self.cap))
        ordered = f"RetryPolicy(base={base}, cap={cap}): base must not exceed cap; both from 0 to ten years"
        require(timedelta(0) <= self.base <= self.cap <= MAX_TIMEOUT, ordered)

    def wait(self, tries: int, chance: float) -> timedelta:
        """The wait after that many tries in this run; `chance` is drawn from [0, 1)."""
        widest = min(self.cap.total_seconds(), self.base.total_seconds() * 2.0 ** min(tries - 1, 500))
        return timedelta(seconds=widest * chance)


_POLICY = RetryPolicy()


def _one_of(known: tuple[str, ...], *, otherwise: str) -> ArgumentKind:
    """One of these strings, or None."""

    def meant(value: object) -> str:
        near = get_close_matches(value.upper(), known, 1) if isinstance(value, str) else []
        return f'"{near[0] if near else otherwise}"'

    return ArgumentKind(lambda value: value is None or value in known, f"one of {', '.join(known)}", meant)


_ROUTING: Final = _one_of(tuple(one.value for one in Strategy), otherwise="CONSISTENT_HASH")
_END: Final = _one_of(tuple(one.value for one in BroadcastEnd), otherwise="any")
INSTANCE_KEY: Final = "{key}"
"""What stands for the key of the saga instance, in a `group` or a `key` of a job."""


@made_as('Job("build-image")')
@dataclass(frozen=True, slots=True)
class Job:
    """Long work as a step: the function `name` (`@job("name")`) of the workers of `queue`, or of the executors of
    `group`.

    `timeout` is the time of each try, None for no limit, or an hour with a group; `retries` how many more tries there
    are. The step fails when the job has: it has no other deadline and no other tries.

    Which executor of a group gets it is said by `routing`, a strategy such as CONSISTENT_HASH, by default ROUND_ROBIN.
    CONSISTENT_HASH goes by `key`, by default another one for each instance; ADDRESS by `address`. A SHARDING_BROADCAST
    has succeeded with all of its executors, or with `end="any"` with the first. `"{key}"` as `group` or `key` is the
    key of the saga instance: the group of an app, in the saga of that app.
    """

    name: str
    queue: str = "default"
    timeout: timedelta | None = None
    retries: int = 0
    _: KW_ONLY
    group: str | None = None
    routing: str | None = None
    key: str | None = None
    address: str | None = None
    end: str | None = None

    def __post_init__(self) -> None:
        demand(self, name=TEXT, queue=TEXT, timeout=perhaps(SPAN), retries=WHOLE, group=perhaps(TEXT))
        demand(self, routing=_ROUTING, key=perhaps(TEXT), address=perhaps(TEXT), end=_END)
        object.__setattr__(self, "name", unicodedata.normalize("NFC", self.name))
        if self.group is not None:
            self._complete()

    def _complete(self) -> None:
        """Stores what is not given as it is meant now: a later release may mean something else by it."""
        strategy = Strategy(self.routing or Strategy.ROUND_ROBIN)
        broadcast = strategy is Strategy.SHARDING_BROADCAST
        object.__setattr__(self, "queue", "" if self.queue == _DEFAULT_QUEUE else self.queue)
        object.__setattr__(self, "timeout", _GROUP_TIMEOUT if self.timeout is None else self.timeout)
        object.__setattr__(self, "routing", strategy.value)
        object.__setattr__(self, "end", BroadcastEnd.ALL.value if broadcast and self.end is None else self.end)
        for name in ("group", "key"):
            text = getattr(self, name)
            object.__setattr__(self, name, None if text is None else unicodedata.normalize("NFC", text))

    @property
    def timeout_ms(self) -> int | None:
        """The time of each try, in milliseconds."""
        return None if self.timeout is None else milliseconds(self.timeout)

    def target(self, saga: str, id: int, key: str) -> JobTarget:
        """For whom it is, as a step of the instance of `saga` with that `id` and `key`."""
        if self.group is None:
            return JobTarget(queue=self.queue)
        by = f"{saga}:{id}" if self.key is None else _named(self.key, key)
        return JobTarget(group=_named(self.group, key), routing=self._routing(by))

    def _routing(self, key: str | None) -> Routing:
        end = None if self.end is None else BroadcastEnd(self.end)
        return Routing(Strategy(self.routing or Strategy.ROUND_ROBIN), key, self.address, end)

    def faults(self) -> list[str]:
        """What is wrong with the place where it runs, as ends of sentences."""
        if self.group is None:
            unused = [name for name in ("routing", "key", "address", "end") if getattr(self, name) is not None]
            queue = "queue must be letters, digits, ., - and _, at most 100"
            found = [] if _QUEUE.fullmatch(self.queue) else [queue]
            return found + [
                f"{name} is for a group of executors: write group=… or leave {name}= out" for name in unused
            ]
        found = [f"{name} {what}" for name, what in self._routing(self.key).faults()]
        if self.queue:
            found.append(
                f"queue {brief(self.queue)} is of workers, a group of executors: write either queue= or group="
            )
        if self.address is not None and not (_ADDRESS.fullmatch(self.address) and len(self.address) <= _MAX_ADDRESS):
            form = "http://host:port or https://host:port in lower case and nothing more"
            found.append(f"address {brief(self.address)} must be {form}, e.g. http://10.0.0.7:9999")
        texts = {"group": self.group, "key": self.key}
        return found + [fault for name, text in texts.items() if text is not None for fault in _text_faults(name, text)]


def _named(text: str, key: str) -> str:
    return key if text == INSTANCE_KEY else text


def _text_faults(name: str, text: str) -> list[str]:
    if text == INSTANCE_KEY:
        return []
    if "{" in text or "}" in text:
        return [f'{name} {brief(text)}: write "{INSTANCE_KEY}" alone for the key of the saga instance, or no braces']
    try:
        normal(text)
    except ValueError as wrong:
        return [f"{name} {wrong}"]
    return []


_RETRY: Final = of("a RetryPolicy", "RetryPolicy(attempts=3)", RetryPolicy)
_JOB: Final = ArgumentKind(
    lambda value: value is None or isinstance(value, Job),
    "a Job",
    lambda value: f"Job({brief(value)})" if isinstance(value, str) else 'Job("…")',
)


@made_as('Compensation("cmd.…", "evt.…")')
@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a finished step: a command, or a job, and the event that says that it is undone.

    `queue_timeout` is as in `Step`.
    """

    command: str = ""
    event: str = ""
    timeout: timedelta = _MINUTE
    retry: RetryPolicy = _POLICY
    job: Job | None = None
    queue_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        demand(self, command=TEXT, event=TEXT, timeout=SPAN, retry=_RETRY, job=_JOB, queue_timeout=perhaps(SPAN))

    @property
    def timeout_ms(self) -> int:
        """The time that the compensation has, in milliseconds."""
        return milliseconds(self.timeout)


@made_as('NothingToUndo("a sent mail cannot be recalled")')
@dataclass(frozen=True, slots=True)
class NothingToUndo:
    """States explicitly that a step has no effects to undo; `why` is for the reader."""

    why: str

    def __post_init__(self) -> None:
        demand(self, why=REASON)


_UNDO: Final = ArgumentKind(
    lambda value: value is None or isinstance(value, Compensation | NothingToUndo),
    "a Compensation or a NothingToUndo",
    lambda _value: 'Compensation("cmd.…", "evt.…")',
)


_ON_FAILURE: Final = ArgumentKind(lambda value: value is None or value == HOLD, "HOLD or None", lambda _value: "HOLD")


@made_as('Step("pay", "PAYING", "cmd.pay", "evt.paid", then="COMPLETED", undo=Compensation("cmd.…", "evt.…"))')
@dataclass(frozen=True, slots=True)
class Step:
    """One command, or one job, and the event that ends it. The saga is in `state` while it is pending, then in `then`.

    `timeout` and `retry` are those of a command; a job brings its own. `timeout` counts from when its work begins: the
    wait in the queue behind others is limited only by `queue_timeout`, which is checked each time that a `timeout` has
    passed, and by the run's own. `on_failure=HOLD`: where it has failed permanently, a person decides, and nothing is
    undone.
    """

    name: str
    state: str
    command: str = ""
    event: str = ""
    then: str = ""
    undo: Compensation | NothingToUndo | None = None
    timeout: timedelta = _MINUTE
    retry: RetryPolicy = _POLICY
    job: Job | None = None
    queue_timeout: timedelta | None = None
    on_failure: str | None = None

    def __post_init__(self) -> None:
        demand(self, name=TEXT, state=TEXT, command=TEXT, event=TEXT, then=TEXT)
        demand(self, undo=_UNDO, timeout=SPAN, retry=_RETRY, job=_JOB)
        demand(self, queue_timeout=perhaps(SPAN), on_failure=_ON_FAILURE)

    @property
    def timeout_ms(self) -> int:
        """The time that the step has, in milliseconds."""
        return milliseconds(self.timeout)


Order = Step | Compensation
"""What has a command, the event that ends it, a timeout and a retry policy: a step, or its compensation."""


def order_of(step: Step, undoes: bool) -> Order:
    """The step itself, or its compensation, which must exist."""
    if not undoes:
        return step
    assert isinstance(step.undo, Compensation)
    return step.undo


def milliseconds(wait: timedelta) -> int:
    """Whole milliseconds."""
    return wait // timedelta(milliseconds=1)


def check_step(where: str, step: Step) -> None:
    """Raises `DefinitionError` that says what to change about `step` and its compensation; `where` names its saga."""
    at = f"{where}, step {brief(step.name)}"
    require(bool(_STEP.fullmatch(step.name)), f"{at}: a step's name must be letters, digits, - and _, at most 40")
    check_state(at, step.state)
    check_state(at, step.then, end=True)
    _check_order(at, step)
    if isinstance(step.undo, Compensation):
        _check_order(at + ", undo", step.undo)
    else:
        require(step.undo is not None, f"{at}: undo is required: undo=Compensation(...) or NothingToUndo('why')")


def _check_order(at: str, order: Step | Compensation) -> None:
    if order.job is not None:
        _check_job(at, order, order.job)
        return
    require(bool(order.command), f"{at}: a command or a job is required: command='cmd.…' or job=Job('…')")
    _check_messages(at, order.command, order.event)
    require(MIN_TIMEOUT <= order.timeout <= MAX_TIMEOUT, f"{at}: the timeout must be from 1 ms to ten years")
    queued = order.queue_timeout
    in_range = queued is None or MIN_TIMEOUT <= queued <= MAX_TIMEOUT
    require(in_range, f"{at}: the queue_timeout must be from 1 ms to ten years")


def _check_job(at: str, order: Step | Compensation, job: Job) -> None:
    require(not order.command, f"{at}: give either a job or the command {order.command}, not both")
    _check_event(at, order.event)
    own = "a job has retries of its own"
    require(order.retry is _POLICY, f"{at}: {own}: give Job(retries=…) instead of retry=")
    same = order.timeout is _MINUTE or order.timeout == job.timeout
    require(same, f"{at}: a job has a timeout of its own: give Job(timeout=…) instead of timeout=")
    require(order.queue_timeout is None, f"{at}: a job has a queue of its own: leave queue_timeout= out")
    try:
        normal(job.name)
    except ValueError as wrong:
        raise DefinitionError(f"{at}: a job's name {wrong}") from None
    for fault in job.faults():
        raise DefinitionError(f"{at}: a job's {fault}")
    in_range = job.timeout is None or MIN_TIMEOUT <= job.timeout <= MAX_TIMEOUT
    require(in_range, f"{at}: the job's timeout must be from 1 ms to ten years")
    require(0 <= job.retries <= _MAX_ATTEMPTS, f"{at}: the job's retries must be from 0 to {_MAX_ATTEMPTS}")


def _check_messages(at: str, command: str, event: str) -> None:
    check_command(at, command)
    _check_event(at, event)


def check_command(at: str, command: str) -> None:
    """Raises `DefinitionError` for what is not a valid command name; `at` is its place."""
    require(bool(_COMMAND.fullmatch(command)), f"{at}: command {brief(command)} must be cmd. and a name: {_NAME}")
    require(not command.endswith(_DEAD), f"{at}: {command} is named like a dead-letter queue: choose another name")


def _check_event(at: str, event: str) -> None:
    require(bool(_EVENT.fullmatch(event)), f"{at}: event {brief(event)} must be evt. and a name: {_NAME}")
    require(not event.endswith(_DEAD), f"{at}: {event} is named like a dead-letter queue: choose another name")
    require(event != STEP_FAILED, f"{at}: {STEP_FAILED} is the failure of every step and cannot be a success")
    require(event != STEP_STARTED, f"{at}: {STEP_STARTED} is the start of every step and cannot be a success")


def check_state(at: str, state: str, *, end: bool = False) -> None:
    """Raises `DefinitionError` for what is not a valid state; only an `end` can be COMPLETED."""
    require(bool(_STATE.fullmatch(state)), f"{at}: state {brief(state)} must be [A-Z][A-Z0-9_]*, at most 40 characters")
    require(state not in RESERVED or (end and state == COMPLETED), f"{at}: state {state} is reserved")
