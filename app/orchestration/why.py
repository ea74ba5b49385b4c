"""What does a saga wait for, and what can be done about it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.broker.port import Broker, LinkState
from app.errors import NotFound, RetryLater
from app.persistence import audit, instances, outbox
from app.persistence.audit import AuditRow
from app.persistence.engine import Connection, Database
from app.persistence.outbox import OutboxRow
from app.persistence.pairs import APPS, pair_of
from sagas.engine.asks import Verb
from sagas.engine.catalog import Catalog
from sagas.engine.control import allowed
from sagas.engine.definition import COMPLETED, Saga
from sagas.engine.orders import NEVER, Out, out
from sagas.engine.state import PAUSED, RETRY, UNDO_FAILED, UNSENDABLE, Instance
from sagas.engine.undo import with_undo

OVERDUE: Final = 15.0
"""Seconds after its wake-up from which nobody seems to look after a saga."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a saga is where it is: a code for programs, one sentence for people, and what to do next.

    `since` is its last change; `next_at` the time at which the machine acts by itself, None if it never will.
    """

    blocker: str
    sentence: str
    next_action: str
    since: datetime | None = None
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the answer is found from. `queue` is (messages, consumers) of the command's queue, None if it is unknown.

    `withdrawal` says who has cancelled the deadline, where there is none.
    """

    saga: Saga
    instance: Instance
    now: datetime
    unsent: OutboxRow | None
    trouble: str | None
    queue: tuple[int, int] | None
    withdrawal: AuditRow | None = None

    @property
    def here(self) -> Out | None:
        """The order that is out."""
        return out(self.saga, self.instance)

    @property
    def seconds(self) -> int:
        """Whole seconds until the wake-up."""
        at = self.instance.wake_at
        return max(0, round((at - self.now).total_seconds())) if at is not None else 0

    @property
    def unlimited(self) -> bool:
        """Whether it waits without a deadline."""
        return self.instance.wake_at is not None and self.instance.wake_at >= NEVER

    @property
    def tries(self) -> str:
        """Which try of how many."""
        here = self.here
        return f"{self.instance.tries} of {here.order.retry.attempts}" if here is not None else "1"

    @property
    def work(self) -> str:
        """What is waited for, in words."""
        here = self.here
        if here is None:
            return self.instance.progress.awaited or self.instance.state
        return f"the undo of {here.step.name}" if here.undoes else here.step.name


class Explainer:
    """Answers for one saga at a time, from its row, its outbox rows and its command's queue."""

    def __init__(self, database: Database, broker: Broker, catalog: Catalog) -> None:
        self._database = database
        self._broker = broker
        self._catalog = catalog

    async def why(self, saga: str, id: int) -> Explanation:
        """Raises `NotFound` and `Unavailable`."""
        known, pair = self._catalog.saga(saga), pair_of(saga)
        async with self._database.read() as connection:
            found = await instances.get(connection, pair, saga, id) if known is not None else None
            if known is None or found is None:
                raise NotFound(f"there is no {saga} {id}")
            rows = await outbox.of_instance(connection, saga, id)
            withdrawal = await _withdrawal(connection, found)
        unsent = next((row for row in rows if row.id == found.command_id), None)
        queue = await self._queue(known, found)
        return explain(Facts(known, found, self._database.now(), unsent, self._trouble(), queue, withdrawal))

    def _trouble(self) -> str | None:
        if self._broker.state is not LinkState.UP:
            return self._broker.trouble or f"the broker is {self._broker.state.value}"
        return self._broker.blocked

    async def _queue(self, saga: Saga, instance: Instance) -> tuple[int, int] | None:
        here = out(saga, instance)
        if here is None or not instance.live or self._broker.state is not LinkState.UP:
            return None
        try:
            return await self._broker.message_count(here.order.command)
        except RetryLater:
            return None


async def _withdrawal(connection: Connection, instance: Instance) -> AuditRow | None:
    """The last time that a person has cancelled the deadline, where there is none."""
    if instance.wake_at is None or instance.wake_at < NEVER:
        return None
    done = await audit.listing(connection, instance.saga, instance.id)
    return next((row for row in reversed(done) if row.verb == Verb.CANCEL_DEADLINE.value), None)


def explain(facts: Facts) -> Explanation:
    """The first entry of the catalogue that fits."""
    for fits in CATALOGUE:
        found = fits(facts)
        if found is not None:
            code, sentence, action = found
            instance = facts.instance
            next_at = None if facts.unlimited else instance.wake_at
            return Explanation(code, sentence, action, instance.updated_at, next_at)
    raise AssertionError("the last entry fits everything")


Found = tuple[str, str, str]


def _late(facts: Facts) -> Found | None:
    if facts.instance.live or facts.here is None:
        return None
    sentence = (
        f"It has failed; {facts.here.step.name} succeeded after that, and its undo was sent and has no answer yet."
    )
    action = "Wait; if it stays, see that a worker runs and `redispatch`: the machine does not send it again by itself."
    return "late_undo", sentence, action


def _ended(facts: Facts) -> Found | None:
    if facts.instance.live:
        return None
    if facts.instance.state == COMPLETED:
        return "completed", "It is done.", "Nothing is left to do."
    why = facts.instance.progress.error or "its history tells the reason"
    return "failed", f"It has failed: {why}.", "Mend the cause, then `retry` to run it again from the beginning."


def _paused(facts: Facts) -> Found | None:
    if facts.instance.blocker != PAUSED:
        return None
    held = f" A failure is kept until then: {facts.instance.progress.error}." if facts.instance.progress.held else ""
    step = facts.instance.progress.awaited
    after = f" It was cancelled, so after that {_coming(facts, step)}." if step is not None else ""
    end = "`cancel` it" if Verb.CANCEL in allowed(facts.saga, facts.instance) else "`terminate` to undo nothing more"
    return "paused", f"A person has paused it before {facts.work} could end.{held}{after}", f"`resume` it, or {end}."


def _undo_failed(facts: Facts) -> Found | None:
    if facts.instance.blocker != UNDO_FAILED:
        return None
    sentence = f"{facts.work[0].upper()}{facts.work[1:]} has failed for good: {facts.instance.progress.error}."
    return "undo_failed", sentence, "Mend the cause and `retry`, `edit` its data, or undo it by hand and `skip`."


def _unsendable(facts: Facts) -> Found | None:
    if facts.instance.blocker != UNSENDABLE:
        return None
    why = facts.unsent.parked_reason if facts.unsent is not None else "the broker refuses it"
    return "unsendable", f"The command of {facts.work} cannot be sent: {why}.", "`edit` the data, then `retry`."


def _unknown_state(facts: Facts) -> Found | None:
    if facts.here is not None or facts.instance.progress.awaited is not None:
        return None
    sentence = (
        f"This version of saga {facts.saga.name!r} knows no way on from {facts.instance.state}: the row was written by"
        f" version {facts.instance.definition_version}, this is version {facts.saga.version}."
    )
    return "unknown_state", sentence, "Run a node with that version of the saga, or `terminate`."


def _overdue(facts: Facts) -> Found | None:
    at = facts.instance.wake_at
    if at is None or (facts.now - at).total_seconds() < OVERDUE:
        return None
    late = round((facts.now - at).total_seconds())
    return "overdue", f"It was due {late} s ago and no node has looked after it.", "Start a node with the orchestrator."


def _awaited(facts: Facts) -> Found | None:
    at, step = facts.instance.wake_at, facts.instance.progress.awaited
    if at is None or step is None:
        return None
    waits = f"It was cancelled and waits for the answer of {step}"
    if facts.unlimited:
        sentence = f"{waits}. It has no deadline: {_withdrawn(facts)}. With the answer {_coming(facts, step)}."
        return "no_deadline", sentence, f"Wait, {_given(facts)}, or `terminate` to undo nothing."
    until = f"at the longest until {_moment(at)} (in {facts.seconds} s, or later if the broker goes away)"
    sooner = f"end the wait sooner with {_extend(facts, '--at TIME')}"
    return (
        "in_flight",
        f"{waits}, {until}; then {_coming(facts, step)}.",
        f"Wait, {sooner}, or `terminate` to undo nothing.",
    )


def _coming(facts: Facts, awaited: str) -> str:
    todo = facts.instance.progress.todo
    names = with_undo(facts.saga, [awaited, *todo])
    return f"it undoes {', '.join(name if name in todo else f'{name} (unless that has failed)' for name in names)}"


def _retry(facts: Facts) -> Found | None:
    if facts.instance.wake_reason != RETRY:
        return None
    here = facts.here
    attempts = here.order.retry.attempts if here is not None else 1
    failed = f"Attempt {facts.instance.tries - 1} of {attempts} of {facts.work} failed: {facts.instance.progress.error}"
    return "retry", f"{failed}; next try in {facts.seconds} s.", "Wait, or `retry` to try now."


def _broker_down(facts: Facts) -> Found | None:
    if facts.trouble is None:
        return None
    return "broker_down", f"The broker cannot be used: {facts.trouble}.", "Bring the broker back; nothing else is lost."


def _unsent(facts: Facts) -> Found | None:
    if facts.unsent is None:
        return None
    sentence = f"The command of {facts.work} has not left the outbox yet."
    return "unsent", sentence, "Wait; if it stays, look at the logs of the nodes and at `orchestrix doctor`."


def _no_consumer(facts: Facts) -> Found | None:
    if facts.queue is None or facts.here is None or facts.queue[1]:
        return None
    command, count = facts.here.order.command, facts.queue[0]
    messages = f"{count} message" if count == 1 else f"{count} messages"
    action = f"Start a worker with `orchestrix worker -q {command}`."
    return "no_consumer", f"{command} has {messages} and no consumer.", action


def _backlog(facts: Facts) -> Found | None:
    if not facts.queue or not facts.queue[0] or facts.here is None:
        return None
    count, workers = facts.queue
    sentence = f"{facts.here.order.command} has {count} messages for {workers} consumers (try {facts.tries})."
    return "backlog", sentence, "Wait, or start more workers."


def _no_deadline(facts: Facts) -> Found | None:
    if not facts.unlimited:
        return None
    sentence = f"It waits for {facts.work} (try {facts.tries}) and has no deadline: {_withdrawn(facts)}."
    verbs = allowed(facts.saga, facts.instance)
    others = "`skip` the step or `cancel`" if Verb.SKIP in verbs else "or `terminate` to undo nothing more"
    return "no_deadline", sentence, f"Wait, {_given(facts)}, {others}."


def _withdrawn(facts: Facts) -> str:
    who = facts.withdrawal
    return f"{who.actor} cancelled it at {_moment(who.at)} ({who.reason})" if who else "a person has cancelled it"


def _given(facts: Facts) -> str:
    return f"give it one with {_extend(facts, '--by 5m')}"


def _extend(facts: Facts, how: str) -> str:
    whose = "" if facts.saga.name == APPS.saga else f" --saga {facts.saga.name}"
    return f"`orchestrix deadlines extend {facts.instance.id}{whose} {how}`"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _working(facts: Facts) -> Found | None:
    sentence = f"A worker has {facts.work} in hand (try {facts.tries}); its time ends in {facts.seconds} s."
    return "in_progress", sentence, "Wait."


CATALOGUE: Final[tuple[Callable[[Facts], Found | None], ...]] = (
    _late,
    _ended,
    _paused,
    _undo_failed,
    _unsendable,
    _unknown_state,
    _overdue,
    _retry,
    _broker_down,
    _awaited,
    _unsent,
    _no_consumer,
    _backlog,
    _no_deadline,
    _working,
)
