"""Dead letter service: an operator's actions on dead letters, which are redrive, edit and drop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from orchestrix import crash
from orchestrix.dead_letters import spans
from orchestrix.dead_letters.collector import REDRIVE
from orchestrix.dead_letters.parse import corrected
from orchestrix.dead_letters.redrive import NotSendable, insert_rows, row_of, taken_ids
from orchestrix.domain.idempotency import Keyed, Repeated
from orchestrix.errors import ConflictError, NotFound
from orchestrix.lifecycle import shielded
from orchestrix.outbox import idempotency_keys
from orchestrix.persistence import audit, dead_letters
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.dead_letters import DeadLetter, DeadLetterFilter
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.catalog import Catalog

__all__ = [
    "DeadLetter",
    "DeadLetterAction",
    "DeadLetterFilter",
    "DeadLetterRequester",
    "DeadLetterService",
    "Drop",
    "Edit",
    "NotSendable",
    "Redrive",
    "RedriveResult",
]

LETTERS_PER_TRANSACTION: Final = 100
EDIT, DROP = "edit-dead-letter", "drop-dead-letter"


@dataclass(slots=True)
class RedriveResult:
    """The result of a bulk redrive: how many fitted, how many are sent again, and which are not, with the reason."""

    matched: int = 0
    redriven: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Done:
    """The dead letters as they are now; how many of them are sent; which cannot be, and why."""

    dead_letters: list[DeadLetter]
    sent: int
    refused: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class DeadLetterRequester:
    """Who asks, and why."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Redrive:
    """Send a dead letter again."""

    id: str
    by: DeadLetterRequester


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the body of a dead letter by `body`."""

    id: str
    by: DeadLetterRequester
    body: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete a dead letter."""

    id: str
    by: DeadLetterRequester


DeadLetterAction = Redrive | Edit | Drop


class DeadLetterService:
    """Each change is one transaction with its audit row. A redrive goes through the outbox, like all messages.

    `notify` notifies the relay. A caller that goes away does not undo what it has asked for.
    """

    def __init__(self, database: Database, catalog: Catalog, notify: Callable[[], None]) -> None:
        self._database = database
        self._catalog = catalog
        self._notify = notify
        self._keys = idempotency_keys.IdempotencyKeys(database)

    async def act(self, action: DeadLetterAction) -> DeadLetter:
        """The dead letter as it is from then on; a dropped one as it was. Raises as `redrive`, `edit` and `drop`."""
        return await shielded(self._act(action))

    async def act_once(self, action: DeadLetterAction, key: Keyed[DeadLetter]) -> DeadLetter | Repeated:
        """`act`, whose answer is stored for `key` in the same transaction. A refused action stores nothing."""
        return await shielded(self._keys.run_once(key, lambda: self._act(action, key)))

    async def redrive(self, id: str, by: DeadLetterRequester) -> DeadLetter:
        """Sends one dead letter again, to where it came from. One that was sent again already stays as it is.

        Raises `NotFound`, `NotSendable`, `Unavailable` (nothing was written) and `OutcomeUnknown`.
        """
        return await self.act(Redrive(id, by))

    async def redrive_all(
        self, filters: DeadLetterFilter, by: DeadLetterRequester, *, dry_run: bool = False
    ) -> RedriveResult:
        """Sends again all open dead letters that fit, a hundred in each transaction; a dry run only counts them."""
        return await shielded(self._redrive_all(filters, by, dry_run))

    async def edit(self, id: str, body: bytes, by: DeadLetterRequester) -> DeadLetter:
        """Replaces the dead letter's body by `body`; it is then about the instance that this one names.

        Raises `NotFound`, `Invalid` if it is too long, and `ConflictError` if it was sent again already.
        """
        return await self.act(Edit(id, by, body))

    async def drop(self, id: str, by: DeadLetterRequester) -> DeadLetter:
        """Deletes a dead letter; as it was. Raises `NotFound`."""
        return await self.act(Drop(id, by))

    async def redrive_all_once(
        self, filters: DeadLetterFilter, by: DeadLetterRequester, key: Keyed[RedriveResult]
    ) -> RedriveResult | Repeated:
        """`redrive_all`, whose answer is stored for `key` when all is done.

        What was sent again before a process died is not sent twice: it is no longer open.
        """

        async def work() -> RedriveResult:
            done = await self._redrive_all(filters, by, dry_run=False)
            await self._database.run(lambda tx: self._note(tx, key, done))
            return done

        return await shielded(self._keys.run_once(key, work))

    @staticmethod
    async def _note(tx: Transaction, key: Keyed[RedriveResult], done: RedriveResult) -> None:
        await idempotency_keys.claim(tx, key)
        await idempotency_keys.answer(tx, key, done)

    async def _act(self, action: DeadLetterAction, key: Keyed[DeadLetter] | None = None) -> DeadLetter:
        dead_letter, sent = await self._database.run(lambda tx: self._write(tx, action, key))
        if sent:
            self._send()
        return dead_letter

    async def _write(
        self, tx: Transaction, action: DeadLetterAction, key: Keyed[DeadLetter] | None
    ) -> tuple[DeadLetter, int]:
        """The dead letter, and how many are sent now."""
        if key is not None:
            await idempotency_keys.claim(tx, key)
        sent = 0
        match action:
            case Redrive(id, by):
                dead_letter, sent = await self._redrive_one(tx, id, by)
            case Edit(id, by, body):
                dead_letter = await self._edit(tx, id, body, by)
            case Drop(id, by):
                dead_letter = await self._drop(tx, id, by)
        return await idempotency_keys.answer(tx, key, dead_letter), sent

    async def _redrive_one(self, tx: Transaction, id: str, by: DeadLetterRequester) -> tuple[DeadLetter, int]:
        done = await self._redrive(tx, [id], by)
        if not done.dead_letters:
            raise _absent(id)
        for _, why in done.refused:
            raise NotSendable(why)
        return done.dead_letters[0], done.sent

    async def _redrive_all(self, filters: DeadLetterFilter, by: DeadLetterRequester, dry_run: bool) -> RedriveResult:
        result, after = RedriveResult(), None
        filters = replace(filters, open_only=True)
        while True:
            async with self._database.read() as connection:
                found = await dead_letters.page(connection, filters, LETTERS_PER_TRANSACTION, after)
            if not found:
                return result
            after = found[-1].died_at, found[-1].id
            result.matched += len(found)
            if not dry_run:
                done = await self._commit([dead_letter.id for dead_letter in found], by)
                result.redriven += done.sent
                result.refused += done.refused

    async def _commit(self, ids: Sequence[str], by: DeadLetterRequester) -> _Done:
        done = await self._database.run(lambda tx: self._redrive(tx, ids, by))
        if done.sent:
            self._send()
        return done

    def _send(self) -> None:
        crash.point("redrive.after_commit")
        self._notify()

    async def _redrive(self, tx: Transaction, ids: Sequence[str], by: DeadLetterRequester) -> _Done:
        found_letters = await dead_letters.lock(tx, ids)
        rows, refused = await self._rows(tx, [one for one in found_letters if one.redriven_at is None])
        if rows:
            sent = [dead_letter for dead_letter in found_letters if dead_letter.id in rows]
            await insert_rows(tx, spans.redrive(tx, [(one, rows[one.id]) for one in sent]))
            await dead_letters.redriven(tx, list(rows), self._database.now())
            await audit.insert(tx, [self._audited(REDRIVE, dead_letter, by) for dead_letter in sent])
            found_letters = await dead_letters.lock(tx, ids)
            crash.point("redrive.before_commit")
        return _Done(found_letters, len(rows), refused)

    async def _rows(
        self, tx: Transaction, dead_letters: Sequence[DeadLetter]
    ) -> tuple[dict[str, OutboxRow], list[tuple[str, str]]]:
        """The rows by the ids of their dead letters, and why the others have none."""
        rows: dict[str, OutboxRow] = {}
        refused = []
        taken = await taken_ids(tx, dead_letters)
        for dead_letter in dead_letters:
            try:
                rows[dead_letter.id] = row_of(dead_letter, self._catalog, self._database.now(), taken=taken)
            except NotSendable as why:
                refused.append((dead_letter.id, str(why)))
        return rows, refused

    async def _edit(self, tx: Transaction, id: str, body: bytes, by: DeadLetterRequester) -> DeadLetter:
        dead_letter = await self._lock(tx, id)
        if dead_letter.redriven_at is not None:
            raise ConflictError("it was redriven already: only an open dead letter can be edited")
        if dead_letter.body == body:
            return dead_letter
        await dead_letters.edit(tx, corrected(dead_letter, body, self._catalog, self._database.now()))
        edited = await self._lock(tx, id)
        await audit.insert(tx, [self._audited(EDIT, edited, by, _before(dead_letter))])
        return edited

    async def _drop(self, tx: Transaction, id: str, by: DeadLetterRequester) -> DeadLetter:
        dead_letter = await self._lock(tx, id)
        await dead_letters.drop(tx, [id])
        await audit.insert(tx, [self._audited(DROP, dead_letter, by, {"reason": dead_letter.reason})])
        return dead_letter

    @staticmethod
    async def _lock(tx: Transaction, id: str) -> DeadLetter:
        dead_letter = await dead_letters.lock_one(tx, id)
        if dead_letter is None:
            raise _absent(id)
        return dead_letter

    def _audited(
        self, verb: str, dead_letter: DeadLetter, by: DeadLetterRequester, more: Mapping[str, Any] | None = None
    ) -> AuditRow:
        return AuditRow(
            at=self._database.now(),
            actor=by.actor,
            verb=verb,
            reason=by.reason,
            saga=dead_letter.saga,
            instance_id=dead_letter.instance_id,
            detail={"deadLetter": dead_letter.id, "queue": dead_letter.queue, **(more or {})},
        )


def _before(dead_letter: DeadLetter) -> dict[str, Any]:
    """What an edit has changed."""
    return {
        "sizeBefore": dead_letter.body_size,
        "sha256Before": dead_letter.body_sha256,
        "sagaBefore": dead_letter.saga,
        "appIdBefore": dead_letter.instance_id,
        "correlationIdBefore": dead_letter.correlation_id,
    }


def _absent(id: str) -> NotFound:
    return NotFound(f"unknown dead letter {id}")
