"""Saga control: stores what an operator's action makes of a saga, by the rules of `orchestrix.saga.actions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from orchestrix import clock, crash
from orchestrix.engine import saga_spans
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.requests import IdempotencyKey, Repeated
from orchestrix.errors import ConflictError, NotFound, Unavailable
from orchestrix.lifecycle import shielded
from orchestrix.outbox import idempotency_keys, saga_log
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.outbox.rows import row_for
from orchestrix.persistence import audit, idempotency, outbox
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import held_events, instances, transitions
from orchestrix.persistence.sagas.definition_store import DefinitionReader, NullDefinitionReader
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.actions.apply import apply_action
from orchestrix.saga.actions.requests import ActionRequest, ActionResult, SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import TransitionInputs
from orchestrix.saga.definition import Saga
from orchestrix.saga.state import Instance
from orchestrix.telemetry.tracing import Span

__all__ = ["Action", "ActionResult", "SagaControl", "VersionMismatch"]


@dataclass(frozen=True, slots=True)
class Action:
    """One verb for one instance. `version` is what the client last read, if given; a dry run changes nothing."""

    saga: str
    id: int
    ask: ActionRequest
    version: int | None = None
    dry_run: bool = False


class VersionMismatch(ConflictError):
    """The saga is no longer at the version that the client names. Nothing was changed."""

    def __init__(self, current: int) -> None:
        super().__init__(f"the saga is now at version {current}: read it again, then decide")
        self.current = current


class SagaControl:
    """Applies one verb to one saga, in one transaction with its history and its audit row.

    The row is locked meanwhile, so that an event or a deadline comes before or after the action, never between.
    """

    def __init__(
        self,
        database: Database,
        relay: OutboxRelay,
        watch: SagaChangeNotifier,
        catalog: Catalog,
        on_commit: Callable[[Iterable[Instance]], None] = lambda _moved: None,
        jobs: JobSteps | None = None,
        reader: DefinitionReader | None = None,
    ) -> None:
        self._reader = reader or NullDefinitionReader()
        self._database = database
        self._relay = relay
        self._watch = watch
        self._catalog = catalog
        self._on_commit = on_commit
        self._jobs = jobs or JobSteps(catalog)
        self._keys = idempotency_keys.IdempotencyKeys(database)

    async def act(self, action: Action) -> ActionResult:
        """The result; without history where the effect was there already, or where it was a dry run.

        Raises `NotFound`, `VersionMismatch`, `ActionNotAllowed`, `InvalidDataError`, `Unavailable` (nothing was
        written) and `OutcomeUnknown`: then it may have happened, and asking again may do it twice, as with skip or with
        a deadline that is extended. A caller that goes away does not undo what it has asked for.
        """
        return await shielded(self._act(action))

    async def act_once(self, action: Action, key: IdempotencyKey) -> ActionResult | Repeated:
        """`act`, whose answer is stored for `key` in the same transaction: asking again is safe, and gives it again.

        A refused action stores nothing. A dry run has no key.
        """
        return await shielded(self._keys.run_once(key, lambda: self._act(action, key)))

    async def _act(self, action: Action, key: IdempotencyKey | None = None) -> ActionResult:
        acted = await self._database.run(lambda tx: self._write_keyed(tx, action, key))
        if acted.history and not action.dry_run:
            crash.point("control.after_commit")
            self._relay.notify()
            self._watch.committed([acted.instance])
            self._on_commit([acted.instance])
        return acted

    async def _write_keyed(self, tx: Transaction, action: Action, key: IdempotencyKey | None) -> ActionResult:
        if key is None:
            return await self._write(tx, action)
        await idempotency_keys.claim(tx, key)
        acted = await self._write(tx, action)
        await idempotency.complete(tx, key.scope, key.key, key.render(acted.instance))
        return acted

    async def _write(self, tx: Transaction, action: Action) -> ActionResult:
        pair = saga_tables_of(action.saga)
        found = await instances.lock_one(tx, pair, action.id)
        if found is None or found.saga != action.saga:
            raise NotFound(f"saga {action.saga!r} has no instance {action.id}")
        saga = await self._version_of(tx, found, action.ask)
        if self._catalog.of(found) is not None and await held_events.first(tx, found.saga, found.id) is not None:
            raise Unavailable("held events of this saga are applied first: retry in a few seconds")
        if action.version is not None and action.version != found.version:
            raise VersionMismatch(found.version)
        inputs = TransitionInputs(self._database.now(), clock.uuid7(), clock.uniform(0, 1))
        acted = apply_action(saga, found, action.ask, inputs)
        if acted.history and not action.dry_run:
            span = saga_spans.begin_action(action.ask.verb.value, found)
            tx.then(span.end)
            acted = _traced(found, acted, span)
            await self._store(tx, pair, found, acted, action.ask)
            saga_spans.describe(span, found, acted)
            tx.then(partial(saga_log.changed, found, acted, context=span.context))
        elif action.ask.verb is SagaAction.RETRY and not action.dry_run:
            await self._jobs.ensure(tx, [found], redispatch=True)  # its dispatch may be lost
        return acted

    async def _version_of(self, tx: Transaction, found: Instance, ask: ActionRequest) -> Saga:
        await self._reader.read_missing(tx, [(found.saga, found.definition_version)])
        saga = self._catalog.of(found)
        if saga is None and ask.verb is SagaAction.TERMINATE:  # which needs to know nothing of the steps
            saga = self._catalog.saga(found.saga)
        if saga is None:
            raise Unavailable(
                f"this node does not know version {found.definition_version} of saga {found.saga!r}: "
                "ask a node of the newer release, or upgrade this one"
            )
        return saga

    async def _store(
        self, tx: Transaction, pair: SagaTables, before: Instance, acted: ActionResult, ask: ActionRequest
    ) -> None:
        now = acted.instance
        if acted.withdrawn is not None:
            await outbox.withdraw(tx, [acted.withdrawn])
        history = [(now.id, change) for change in acted.history]
        if not await transitions.write(tx, pair, [(before.version, now)], history):
            raise ConflictError("concurrent update of a locked row")
        await self._jobs.follow(tx, [(before, acted)])
        if (
            acted.command is not None and acted.command.job is None
        ):  # also where a copy is on its way: it may come while no worker may process it
            await outbox.replace_all(tx, [row_for(now, acted.command)])
        await audit.insert(tx, [_audited(before, now, ask)])
        crash.point("control.before_commit")


def _traced(before: Instance, acted: ActionResult, span: Span) -> ActionResult:
    """`acted`, whose history names the trace of the action; a command that it issues follows from its span."""
    if span.context is None:
        return acted
    instance = acted.instance
    if acted.command is not None or instance.command_id != before.command_id:
        instance = replace(instance, trace_head=span.context.traceparent)
    history = tuple(replace(row, trace_id=span.context.trace_id) for row in acted.history)
    return replace(acted, instance=instance, history=history)


def _audited(before: Instance, after: Instance, ask: ActionRequest) -> AuditRow:
    asked: dict[str, Any] = {"output": ask.output, "patch": ask.patch}
    if ask.verb in (SagaAction.SET_DEADLINE, SagaAction.CANCEL_DEADLINE):
        asked["wakeAt"] = after.wake_at.isoformat() if after.wake_at is not None else None
    return AuditRow(
        at=after.updated_at,
        actor=ask.actor,
        verb=ask.verb.value,
        saga=after.saga,
        instance_id=after.id,
        from_version=before.version,
        to_version=after.version,
        reason=ask.reason,
        detail={name: value for name, value in asked.items() if value is not None} or None,
    )
