"""Saga explainer: says what a saga waits for, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from orchestrix.broker.port import Broker
from orchestrix.domain.job_diagnosis import SilenceLimits
from orchestrix.engine.broker_status import COUNT_TTL_S, BrokerStatus, needed
from orchestrix.engine.explain import finished_wait, worker_crash
from orchestrix.engine.explain.explanation import SagaExplanation
from orchestrix.engine.explain.facts import SagaFacts, row_says_all
from orchestrix.engine.explain.job import describe, work_of
from orchestrix.engine.explain.operator_actions import RETRY_ADVICE, done_by, end_of, wait_of
from orchestrix.engine.explain.pause import by_blocker, in_flight_note
from orchestrix.engine.explain.step_failure import failure_of
from orchestrix.engine.explain.unusable_answer import unusable_answer
from orchestrix.engine.explain.workers import queued_behind_others, without_action
from orchestrix.errors import NotFound
from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.engine import Connection, Database
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import instances, redelivered_commands
from orchestrix.persistence.sagas.definition_store import DefinitionReader, NullDefinitionReader
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.persistence.sagas.saga_tables import APPS, saga_tables_of
from orchestrix.quantities import duration
from orchestrix.saga.actions.apply import allowed
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import migration_due
from orchestrix.saga.compensation import with_undo
from orchestrix.saga.definition import COMPLETED, Saga
from orchestrix.saga.state import (
    DEADLINE,
    JOB,
    PAUSED,
    RETRY,
    UNDO_FAILED,
    UNSENDABLE,
    Instance,
)

OVERDUE_AFTER_S: Final = 15.0
"""Seconds after its wake-up time after which no node seems to look after a saga."""


class SagaExplainer:
    """Answers for one saga at a time, from its row, its outbox rows, its dead letters and its commands' queues.

    `phase` says whether this process is only `starting`, or `stopping` and with it a worker of its own; else None.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        catalog: Catalog,
        limits: SilenceLimits,
        phase: Callable[[], str | None] = lambda: None,
        reader: DefinitionReader | None = None,
    ) -> None:
        self._reader = reader or NullDefinitionReader()
        self._database, self._catalog, self._limits = database, catalog, limits
        self._broker_status, self._phase = BrokerStatus(broker), phase

    async def why(self, saga: str, id: int) -> SagaExplanation:
        """Raises `NotFound` and `Unavailable`."""
        async with self._database.read() as connection:
            found = await instances.get(connection, saga_tables_of(saga), saga, id)
            if found is None:
                raise NotFound(f"saga {saga!r} has no instance {id}")
            known = await self._version_of(connection, found)
            if known is None:
                return _unknown_version(found)
            rows = await outbox.of_instance(connection, saga, id)
            action, ending = await wait_of(connection, found), await end_of(connection, found)
            dead_letter = await unusable_answer(connection, known, found)
            job = await work_of(connection, known, found, self._limits, self._broker_status)
            failure = await failure_of(connection, found)
            suspect = await redelivered_commands.of_command(connection, found.command_id or "")
        unsent = next((row for row in rows if row.id == found.command_id), None)
        queues = await self._broker_status.counts(needed(known, found))
        problem, now, phase = self._broker_status.problem, self._database.now(), self._phase()
        facts = SagaFacts(known, found, now, unsent, problem, queues, action, dead_letter, job, phase, ending, suspect)
        return explain(replace(facts, failure=failure))

    async def several(self, found: Sequence[Instance]) -> list[SagaExplanation | None]:
        """Why each of these stuck instances waits, which were just read; None for one that is gone by now.

        Most rows say it themselves: a few statements are enough for all of them. The others are read as by `why`.
        Raises `Unavailable`.
        """
        async with self._database.read() as connection:
            await self._reader.read_missing(connection, sorted({(one.saga, one.definition_version) for one in found}))
            commands = sorted({one.command_id for one in found if one.command_id is not None})
            unsent = await outbox.several(connection, commands)
            suspects = await redelivered_commands.several(connection, commands)
            answered = await dead_letters.owners(connection, {(one.saga, one.id) for one in found})
        return [
            await (
                self._by_row(one, unsent.get(one.command_id or ""), suspects.get(one.command_id or ""))
                if row_says_all(one) and (one.saga, one.id) not in answered
                else self._why_or_none(one)
            )
            for one in found
        ]

    async def _by_row(
        self, one: Instance, unsent: OutboxRow | None, suspect: RedeliveryRecord | None
    ) -> SagaExplanation:
        known = self._catalog.of(one)
        if known is None:
            return _unknown_version(one)
        queues = await self._broker_status.counts(needed(known, one), max_age_s=COUNT_TTL_S)
        problem, now = self._broker_status.problem, self._database.now()
        return explain(SagaFacts(known, one, now, unsent, problem, queues, phase=self._phase(), suspect=suspect))

    async def _why_or_none(self, one: Instance) -> SagaExplanation | None:
        try:
            return await self.why(one.saga, one.id)
        except NotFound:
            return None

    async def _version_of(self, connection: Connection, found: Instance) -> Saga | None:
        await self._reader.read_missing(connection, [(found.saga, found.definition_version)])
        return self._catalog.of(found)


def _unknown_version(found: Instance) -> SagaExplanation:
    """Of an instance that this node cannot run; others may."""
    version = f"version {found.definition_version} of saga {found.saga!r}"
    return SagaExplanation(
        "unknown_version",
        f"This node does not know {version}: it is not stored, or was stored by a newer release. Its events are held.",
        f"Start a node whose code has {version}, or upgrade this node; `terminate` ends the saga without undo.",
        found.updated_at,
        found.wake_at,
    )


def explain(facts: SagaFacts) -> SagaExplanation:
    """The first entry of the catalogue that fits."""
    for fits in CATALOGUE:
        found = fits(facts)
        if found is not None:
            code, sentence, action = without_action(*found) if facts.phase == "starting" else found
            instance = facts.instance
            next_at = None if facts.unlimited else instance.wake_at
            return SagaExplanation(code, sentence, action, instance.updated_at, next_at)
    raise AssertionError("the last entry fits everything")


Found = tuple[str, str, str]


def _late_undo(facts: SagaFacts) -> Found | None:
    if facts.instance.live or facts.command is None:
        return None
    sentence = (
        f"Failed; step {facts.command.step.name} succeeded after that. Its undo was sent and is not answered yet."
    )
    if facts.unconsumed:
        return "late_undo", f"{sentence} {facts.unconsumed.describe()}.", f"{facts.unconsumed.helps()}."
    action = "Wait. If this lasts, check that a worker runs, then `redispatch`: this undo is not resent by itself."
    return "late_undo", sentence, action


def _ended(facts: SagaFacts) -> Found | None:
    if facts.instance.live:
        return None
    if facts.instance.state == COMPLETED:
        return "completed", "Completed.", "Nothing to do."
    why = facts.failure.describe(facts.saga, _moment(facts.failure.at)) if facts.failure is not None else None
    why = why or facts.instance.progress.error or "see its history for the reason"
    if facts.ending is not None:
        ended = facts.ending.describe(_moment(facts.ending.action.at), facts.instance.progress.left, why)
        return "failed", ended, RETRY_ADVICE
    verb = "apps retry" if facts.saga.name == APPS.saga else f"sagas retry {facts.saga.name}"
    again = f"`orchestrix {verb} {facts.instance.id}`"
    return "failed", f"Failed: {why}.", f"Fix the cause, then `retry` it from the beginning: {again}."


def _paused(facts: SagaFacts) -> Found | None:
    if facts.instance.blocker != PAUSED:
        return None
    progress = facts.instance.progress
    held = f" A failure is kept until `resume`: {progress.error}." if progress.held else ""
    step = facts.instance.progress.awaited
    after = f" It was cancelled: after `resume` {_next_steps(facts, step)}." if step is not None else ""
    end = (
        "`cancel` it"
        if SagaAction.CANCEL in allowed(facts.saga, facts.instance)
        else "`terminate` to undo nothing more"
    )
    who = _done(facts, "Paused") or "Paused"
    coming = in_flight_note(facts.saga, facts.instance)
    return "paused", f"{who} while {facts.work} was running.{coming}{held}{after}", f"`resume` it, or {end}."


def _blocked(facts: SagaFacts) -> Found | None:
    return by_blocker(facts.instance, facts.work)


def _undo_failed(facts: SagaFacts) -> Found | None:
    if facts.instance.blocker != UNDO_FAILED:
        return None
    sentence = f"{facts.work[0].upper()}{facts.work[1:]} failed permanently: {facts.instance.progress.error}."
    return "undo_failed", sentence, "Fix the cause and `retry`, `edit` its data, or undo it by hand and `skip`."


def _unsendable(facts: SagaFacts) -> Found | None:
    if facts.instance.blocker != UNSENDABLE:
        return None
    why = facts.unsent.parked_reason if facts.unsent is not None else "the broker refused it"
    return "unsendable", f"The command of {facts.work} cannot be sent: {why}.", "`edit` the data, then `retry`."


def _unknown_state(facts: SagaFacts) -> Found | None:
    if facts.command is not None or facts.instance.progress.awaited is not None:
        return None
    state, version, written = facts.instance.state, facts.saga.version, facts.instance.definition_version
    if written == version:
        sentence = f"State {state} does not exist in version {version} of saga {facts.saga.name!r} as this node has it."
        return "unknown_state", sentence, "Run a node whose code has this state, or `terminate`."
    sentence = (
        f"State {state} (written by version {written}) does not exist in version {version} of saga"
        f" {facts.saga.name!r}, which this node runs."
    )
    return "unknown_state", sentence, f"Run a node with version {written} of the saga, or `terminate`."


def _overdue(facts: SagaFacts) -> Found | None:
    at = facts.instance.wake_at
    if at is None or (facts.now - at).total_seconds() < OVERDUE_AFTER_S:
        return None
    late = duration((facts.now - at).total_seconds())
    sentence = f"Overdue: it was due {late} ago, and no node has processed it."
    return "overdue", sentence, "Start a node with the role orchestrator."


def _dead_letter(facts: SagaFacts) -> Found | None:
    dead_letter = facts.dead_letter
    if dead_letter is None:
        return None
    answer = f"An answer to {facts.work} at {_moment(dead_letter.died_at)} was rejected: {dead_letter.reason}"
    text = f"See `orchestrix dlq show {dead_letter.id}`"
    action = f"{text}, fix it with `orchestrix dlq edit`, then `orchestrix dlq redrive {dead_letter.id}`."
    return "dead_letter", f"{answer}. It is dead letter {dead_letter.id}.", action


def _job(facts: SagaFacts) -> Found | None:
    if facts.job is None:
        return None
    sentence, action = describe(facts.job, facts.now)
    at, step = facts.instance.wake_at, facts.instance.progress.awaited
    if step is not None:
        sentence = f"Cancelled; waiting for its job to stop, then {_next_steps(facts, step)}. {sentence}"
    given = facts.instance.given or (at if facts.instance.wake_reason == DEADLINE else None)
    if given is not None:
        sentence = f"{sentence} Its deadline was set by hand: {_moment(given)}."
    return JOB, sentence, action


def _awaited(facts: SagaFacts) -> Found | None:
    at, step = facts.instance.wake_at, facts.instance.progress.awaited
    if at is None or step is None:
        return None
    waits = f"Cancelled; waiting for the answer of step {step}"
    if facts.unconsumed:
        then = f"After the answer, or when it times out, {_next_steps(facts, step)}"
        helps = f"{facts.unconsumed.helps()}, or `terminate` to undo nothing."
        return "no_consumer", f"{waits}. {facts.unconsumed.describe()}. {then}.", helps
    if facts.unlimited:
        sentence = f"{waits}, without a deadline ({_withdrawn(facts)}). After the answer {_next_steps(facts, step)}."
        return "no_deadline", sentence, f"Wait, {_extend_hint(facts)}, or `terminate` to undo nothing."
    until = f"until {_moment(at)} at the latest (in {duration(facts.seconds)}; later if the broker is down)"
    sooner = f"end the wait sooner with {_extend(facts, '--at TIME')}"
    return (
        "in_flight",
        f"{waits}, {until}. Then {_next_steps(facts, step)}.",
        f"Wait, {sooner}, or `terminate` to undo nothing.",
    )


def _next_steps(facts: SagaFacts, awaited: str) -> str:
    todo = facts.instance.progress.todo
    names = with_undo(facts.saga, [awaited, *todo])
    return f"it undoes {', '.join(name if name in todo else f'{name} (unless it failed)' for name in names)}"


def _retry(facts: SagaFacts) -> Found | None:
    if facts.instance.wake_reason != RETRY:
        return None
    here = facts.command
    if migration_due(facts.instance, facts.now) is not None:
        sentence = f"The command of {facts.work} waits for `sagas migrate`, which moves the saga to another version"
        return "migration", f"{sentence}, for at most {duration(facts.seconds)}.", "Wait, or `retry` to send it now."
    attempts = here.order.retry.attempts if here is not None else 1
    work = f"{facts.work[0].upper()}{facts.work[1:]}, attempt {facts.instance.tries - 1} of {attempts}, failed"
    then = f"retrying in {duration(facts.seconds)}" if facts.seconds else "retrying now"
    return "retry", f"{work}: {facts.instance.progress.error}; {then}.", "Wait, or `retry` to retry now."


def _broker_down(facts: SagaFacts) -> Found | None:
    if facts.problem is None:
        return None
    action = "Restart the broker. No data is lost; work resumes by itself."
    return "broker_down", f"RabbitMQ is unreachable: {facts.problem}.", action


def _unsent(facts: SagaFacts) -> Found | None:
    if facts.unsent is None:
        return None
    sentence = f"The command of {facts.work} has not left the outbox yet."
    return "unsent", sentence, "Wait. If this lasts, see the logs of the nodes and `orchestrix doctor`."


def _no_consumer(facts: SagaFacts) -> Found | None:
    return (
        ("no_consumer", f"{facts.unconsumed.describe()}.", f"{facts.unconsumed.helps()}.") if facts.unconsumed else None
    )


def _backlog(facts: SagaFacts) -> Found | None:
    if not facts.queue or not facts.queue[0] or facts.command is None or facts.instance.begun:
        return None
    return queued_behind_others(facts.command.order, facts.instance, facts.queue, facts.tries)


def _no_deadline(facts: SagaFacts) -> Found | None:
    if not facts.unlimited:
        return None
    sentence = f"Waiting for {facts.work} (attempt {facts.tries}) without a deadline ({_withdrawn(facts)})."
    verbs = allowed(facts.saga, facts.instance)
    others = "`skip` the step or `cancel`" if SagaAction.SKIP in verbs else "or `terminate` to undo nothing more"
    return "no_deadline", sentence, f"Wait, {_extend_hint(facts)}, {others}."


def _withdrawn(facts: SagaFacts) -> str:
    return _done(facts, "cancelled") or "cancelled by hand"


def _done(facts: SagaFacts, what: str) -> str | None:
    action = facts.last_action
    return done_by(action, what, _moment(action.at)) if action is not None else None


def _extend_hint(facts: SagaFacts) -> str:
    return f"set a deadline with {_extend(facts, '--by 5m')}"


def _extend(facts: SagaFacts, how: str) -> str:
    whose = "" if facts.saga.name == APPS.saga else f" --saga {facts.saga.name}"
    return f"`orchestrix deadlines extend {facts.instance.id}{whose} {how}`"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _working(facts: SagaFacts) -> Found | None:
    left = duration(facts.seconds)
    sentence = f"A worker is processing {facts.work} (attempt {facts.tries}); it times out in {left}."
    return "in_progress", sentence, "Wait."


CATALOGUE: Final[tuple[Callable[[SagaFacts], Found | None], ...]] = (
    _late_undo,
    _ended,
    _paused,
    _blocked,
    _undo_failed,
    _unsendable,
    _unknown_state,
    _overdue,
    _retry,
    _broker_down,
    _dead_letter,
    _job,
    _awaited,
    _unsent,
    worker_crash.found,
    _no_consumer,
    finished_wait.found,
    _backlog,
    _no_deadline,
    _working,
)
