"""Dead-letter routes: list, show, edit, redrive and drop messages that could not be handled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from starlette.responses import Response

from orchestrix.api import pagination
from orchestrix.api.dead_letters.models import (
    DeadLetterBody,
    DeadLetterPage,
    DeadLetterSummary,
    DryRunQuery,
    EditLetter,
    LetterFilter,
    LetterQuery,
    RedriveLetters,
    RedrivenBody,
    RefusedLetter,
)
from orchestrix.api.headers import IDEMPOTENCY_KEY
from orchestrix.api.idempotency import repeated
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, as_sentence, ended, invalid_body, not_found
from orchestrix.api.values import NO_REASON, OptionalReason, ReasonQuery, reason_of
from orchestrix.dead_letters.service import (
    DeadLetter,
    DeadLetterAction,
    DeadLetterFilter,
    DeadLetterRequester,
    Drop,
    Edit,
    NotSendable,
    Redrive,
    RedriveResult,
)
from orchestrix.errors import ConflictError, Invalid, NotFound
from orchestrix.persistence import dead_letters
from orchestrix.persistence.sagas.saga_tables import APPS

ORDER: Final = "-diedAt"
MOST_REFUSED: Final = 100
"""So many of those that cannot be sent again are named."""
ONE: Final = "/dead-letters/{letter}"
KEYED: Final[dict[str, Any]] = {"headers": (IDEMPOTENCY_KEY,)}


def _refusal(error: Exception, wanted: object) -> Problem | None:
    match error:
        case NotFound():
            return not_found(f"dead letter {wanted}")
        case NotSendable():
            return Problem("illegal_transition", ended(f"It cannot be sent: {error}"), allowed=["edit", "drop"])
        case ConflictError():
            return Problem("illegal_transition", as_sentence(error), allowed=["drop"])
        case Invalid():
            return invalid_body([{"pointer": "/body", "detail": str(error)}])
        case _:
            return None


operations = Operations("control", refusal=_refusal)


def dead_letter_id(call: Call) -> str:
    """The id in the path; raises `Problem` 404 for what no dead letter can have."""
    text = call.path("letter")
    try:
        return str(UUID(text))
    except ValueError:
        raise not_found(f"dead letter {text[:60]!r}") from None


@operations.get("/dead-letters")
async def list_dead_letters(call: Call, query: LetterQuery) -> DeadLetterPage:
    """List dead letters.

    Messages that could not be handled, the last to die first, without their bodies. Those that were sent again are
    left out unless they are asked for.
    """
    after = pagination.decode_row(ORDER, query.cursor)
    async with call.context.database.read() as connection:
        found = await dead_letters.page(connection, _filter(query, query.app_id), query.limit + 1, after)
    items = [DeadLetterSummary.made(dead_letter) for dead_letter in found[: query.limit]]
    last = found[query.limit - 1] if len(found) > query.limit else None
    return DeadLetterPage(
        items=items, next_cursor=pagination.encode_row(ORDER, last.died_at, last.id) if last else None
    )


def _filter(asked: LetterQuery | LetterFilter, instance_id: int | None) -> DeadLetterFilter:
    return DeadLetterFilter(
        queue=asked.queue,
        saga=asked.saga or (APPS.saga if instance_id is not None else None),
        instance_id=instance_id,
        reason=asked.reason,
        open_only=not getattr(asked, "redriven", False),
    )


@operations.post("/dead-letters/redrive", **KEYED)
async def redrive_dead_letters(call: Call, query: DryRunQuery, asked: RedriveLetters) -> RedrivenBody | Response:
    """Send again all dead letters that match.

    Each once, to the queue that it came from. With `dryRun` they are only counted.
    """
    wanted, dry_run = _filter(asked.filter, asked.filter.appId), asked.dryRun or query.dry_run
    by, letters, key = DeadLetterRequester(call.actor, asked.reason), call.context.dead_letters, call.key(_counted)
    if key is None or dry_run:  # what changes nothing needs no stored answer
        return _counted(await letters.redrive_all(wanted, by, dry_run=dry_run), dry_run=dry_run)
    once = await letters.redrive_all_once(wanted, by, key)
    return _counted(once) if isinstance(once, RedriveResult) else repeated(once)


def _counted(done: RedriveResult, *, dry_run: bool = False) -> RedrivenBody:
    refused = [RefusedLetter(id=id, reason=why) for id, why in done.refused[:MOST_REFUSED]]
    return RedrivenBody.of(done, dry_run=dry_run, refused=refused)


@operations.get(ONE, of=dead_letter_id)
async def get_dead_letter(call: Call, wanted: str) -> DeadLetterBody:
    """Show a dead letter.

    With its body and its headers.
    """
    async with call.context.database.read() as connection:
        found = await dead_letters.get(connection, wanted)
    if found is None:
        raise not_found(f"dead letter {wanted}")
    return DeadLetterBody.whole(found)


@operations.patch(ONE, of=dead_letter_id, problems=("illegal_transition",), **KEYED)
async def edit_dead_letter(call: Call, wanted: str, edit: EditLetter) -> DeadLetterBody | Response:
    """Edit the body of a dead letter.

    Before it is sent again.
    """
    return await _act(call, Edit(wanted, DeadLetterRequester(call.actor, edit.reason), edit.content()))


@operations.post(f"{ONE}/redrive", of=dead_letter_id, problems=("illegal_transition",), **KEYED)
async def redrive_dead_letter(call: Call, wanted: str, why: OptionalReason) -> DeadLetterBody | Response:
    """Send a dead letter again.

    To the queue that it came from. Asking again sends nothing more; if it dies again, it is listed again.
    """
    return await _act(call, Redrive(wanted, DeadLetterRequester(call.actor, why.reason or NO_REASON)))


@operations.delete(ONE, of=dead_letter_id, **KEYED)
async def drop_dead_letter(
    call: Call, wanted: str, query: ReasonQuery, why: OptionalReason
) -> DeadLetterBody | Response:
    """Delete a dead letter.

    The answer is the dead letter as it was; the audit keeps that it existed.
    """
    reason = reason_of(query, why)
    return await _act(call, Drop(wanted, DeadLetterRequester(call.actor, reason)), {"reason": reason})


async def _act(
    call: Call, action: DeadLetterAction, sent: Mapping[str, Any] | None = None
) -> DeadLetterBody | Response:
    """Does it to one dead letter; `sent` is what its key is for, if that is not the body."""
    key, letters = call.key(DeadLetterBody.whole, sent), call.context.dead_letters
    done = await letters.act(action) if key is None else await letters.act_once(action, key)
    return DeadLetterBody.whole(done) if isinstance(done, DeadLetter) else repeated(done)
