"""Dead-letter routes: list, show, edit, redrive and drop messages that could not be handled."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from starlette.responses import Response

from orchestrix.api import cursors, serializers
from orchestrix.api.action_requests import BodyDemand, RedriveDemand, Remark
from orchestrix.api.control import BODY_PROBLEMS, DRY_RUN, REASON, reason_of
from orchestrix.api.idempotency import key_of, repeated, stored
from orchestrix.api.instance_routes import KEY, KEY_PROBLEMS, REPEATED, Answers, json_of, page
from orchestrix.api.listing import CURSOR, DEFAULT_LIMIT, LIMIT, page_response
from orchestrix.api.parameters import Parameter, Query
from orchestrix.api.problems import Problem, bad_parameter, ended, invalid_body, not_found, said
from orchestrix.api.request_body import parsed, read_object, read_perhaps
from orchestrix.api.routes import Call, Route
from orchestrix.api.schemas import DeadLetterBody, DeadLetterPage, RedrivenBody
from orchestrix.api.start import JSON
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
from orchestrix.domain.idempotency import StoredAnswer
from orchestrix.errors import ConflictError, Invalid, NotFound
from orchestrix.persistence import dead_letters
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.messages import MAX_ID, UnreadableMessage, dump, load, storable

ORDER: Final = "-diedAt"
MOST_REFUSED: Final = 100
"""So many of those that cannot be sent again are named."""
_ID: Final = {"type": "integer", "format": "int64", "minimum": 1}
_FLAG: Final = {"type": "boolean", "default": False}
FILTERS: Final = (
    Parameter("queue", "Only those that died in this queue; `orchestrator.unrouted` has those that came into none."),
    Parameter("saga", "Only those of this saga."),
    Parameter("appId", "Only those of this instance of `saga`, or of this app.", _ID),
    Parameter("reason", "Only where the reason begins so."),
    Parameter("redriven", "Also those that were sent again.", _FLAG),
)


async def list_letters(call: Call) -> Response:
    """One page, the last to die first."""
    wanted, limit = _filter(call.query), call.query.limit(DEFAULT_LIMIT)
    after = _after(call.query.text("cursor"))
    async with call.context.database.read() as connection:
        found = await dead_letters.page(connection, wanted, limit + 1, after)
    last = found[limit - 1] if len(found) > limit else None
    cursor = cursors.encode(ORDER, f"{last.died_at.isoformat()} {last.id}", 0) if last else None
    return page_response(call, [summary(letter) for letter in found[:limit]], cursor)


async def show_letter(call: Call) -> Response:
    """One letter with all that is known of it."""
    wanted = _wanted(call)
    async with call.context.database.read() as connection:
        found = await dead_letters.get(connection, wanted)
    if found is None:
        raise not_found(f"dead letter {wanted}")
    return _answer(found)


async def edit_letter(call: Call) -> Response:
    """Puts another body in its place."""
    wanted, body = _wanted(call), await read_object(call.request)
    demand = parsed(BodyDemand, body)
    return await _act(call, Edit(wanted, DeadLetterRequester(call.actor, demand.reason), demand.content()), body)


async def redrive_letter(call: Call) -> Response:
    """Sends it again."""
    wanted, body = _wanted(call), await read_perhaps(call.request)
    demand = parsed(Remark, body)
    return await _act(call, Redrive(wanted, DeadLetterRequester(call.actor, demand.reason)), body)


async def drop_letter(call: Call) -> Response:
    """Forgets it."""
    wanted, reason = _wanted(call), await reason_of(call)
    return await _act(call, Drop(wanted, DeadLetterRequester(call.actor, reason)), {"reason": reason})


async def _act(call: Call, deed: DeadLetterAction, body: Mapping[str, Any]) -> Response:
    """Does it to one letter; `body` is what the client sent, for its key."""
    key = key_of(call.request, call.actor, body, partial(_kept, call))
    with _refusals(deed.id):
        if key is None:
            return _answer(await call.context.letters.act(deed))
        done = await call.context.letters.act_once(deed, key)
    return _answer(done) if isinstance(done, DeadLetter) else repeated(done)


async def redrive_letters(call: Call) -> Response:
    """Sends again all that fit."""
    body = await read_object(call.request)
    demand = parsed(RedriveDemand, body)
    asked = demand.filter
    saga = APPS.saga if asked.saga is None and asked.appId is not None else asked.saga
    wanted = DeadLetterFilter(queue=asked.queue, saga=saga, instance_id=asked.appId, reason=asked.reason)
    dry_run = demand.dryRun or call.query.flag(DRY_RUN.name) or False
    by, letters = DeadLetterRequester(call.actor, demand.reason), call.context.letters
    key = key_of(call.request, call.actor, body, partial(_counted, call))
    if key is None or dry_run:  # what changes nothing needs no stored answer
        done = await letters.redrive_all(wanted, by, dry_run=dry_run)
        return Response(_count(done, dry_run=dry_run), media_type=JSON)
    once = await letters.redrive_all_once(wanted, by, key)
    return Response(_count(once, dry_run=False), media_type=JSON) if isinstance(once, RedriveResult) else repeated(once)


def _kept(call: Call, letter: DeadLetter, fingerprint: str) -> StoredAnswer:
    return stored(call.request, dump(_full(letter)), fingerprint)


def _counted(call: Call, done: RedriveResult, fingerprint: str) -> StoredAnswer:
    return stored(call.request, _count(done, dry_run=False), fingerprint)


def _count(done: RedriveResult, *, dry_run: bool) -> bytes:
    refused = [{"id": id, "reason": why} for id, why in done.refused[:MOST_REFUSED]]
    return dump({"dryRun": dry_run, "matched": done.matched, "redriven": done.redriven, "refused": refused})


def summary(letter: DeadLetter) -> dict[str, Any]:
    """The letter as lists show it."""
    return {
        "id": letter.id,
        "queue": letter.queue,
        "routingKey": letter.routing_key,
        "type": letter.type,
        "saga": letter.saga,
        "appId": letter.instance_id,
        "messageId": letter.message_id,
        "correlationId": letter.correlation_id,
        "reason": letter.reason,
        "error": letter.error,
        "deliveries": letter.deliveries or None,
        "bodySize": letter.body_size,
        "diedAt": serializers.moment(letter.died_at),
        "recordedAt": serializers.moment(letter.recorded_at),
        "redriven": letter.redriven,
        "redrivenAt": serializers.perhaps(letter.redriven_at),
        "editedAt": serializers.perhaps(letter.edited_at),
    }


def _full(letter: DeadLetter) -> dict[str, Any]:
    encoding, body = _shown(letter.body)
    return {
        **summary(letter),
        "exchange": letter.exchange,
        "bodyEncoding": encoding,
        "body": body,
        "bodySha256": letter.body_sha256,
        "headers": dict(letter.headers),
    }


def _shown(body: bytes | None) -> tuple[str | None, Any]:
    """(how it is written, the body): an object where it is one, else text, else in Base64."""
    if body is None:
        return None, None
    try:
        return "json", load(body)
    except UnreadableMessage:
        pass
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    return ("text", text) if storable(text) else ("base64", b64encode(body).decode())


def _answer(letter: DeadLetter) -> Response:
    return Response(dump(_full(letter)), media_type=JSON)


def _wanted(call: Call) -> str:
    text = call.path("letter")
    try:
        return str(UUID(text))
    except ValueError:
        raise not_found(f"dead letter {text[:60]!r}") from None


def _filter(query: Query) -> DeadLetterFilter:
    instance_id = query.number("appId", 1, MAX_ID - 1)
    saga = query.text("saga") or (APPS.saga if instance_id is not None else None)
    return DeadLetterFilter(
        queue=query.text("queue"),
        saga=saga,
        instance_id=instance_id,
        reason=query.text("reason"),
        open_only=not query.flag("redriven"),
    )


def _after(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    moment, _, last_id = cursors.decode(ORDER, cursor, str)[0].partition(" ")
    try:
        return datetime.fromisoformat(moment).astimezone(UTC), str(UUID(last_id))
    except (ValueError, OverflowError):
        raise bad_parameter("cursor", "was not given out by this API; begin again without it.") from None


@contextmanager
def _refusals(wanted: str) -> Iterator[None]:
    """Makes a problem of each way to refuse."""
    try:
        yield
    except NotFound:
        raise not_found(f"dead letter {wanted}") from None
    except NotSendable as refused:
        raise Problem("illegal_transition", ended(f"It cannot be sent: {refused}"), allowed=["edit", "drop"]) from None
    except ConflictError as refused:
        raise Problem("illegal_transition", said(refused), allowed=["drop"]) from None
    except Invalid as refused:
        raise invalid_body([{"pointer": "/body", "detail": str(refused)}]) from None


_ONE: Final = "/dead-letters/{letter}"
_SHOWN: Final[Answers] = {200: json_of(DeadLetterBody, "As it is from now on.", REPEATED)}
_PROBLEMS: Final = ("not_found", "bad_parameter", "unavailable")
_ACTED: Final = (*_PROBLEMS, *KEY_PROBLEMS, *BODY_PROBLEMS)

ROUTES: Final = (
    Route(
        "GET",
        "/dead-letters",
        "listDeadLetters",
        list_letters,
        "Messages that could not be handled, the last to die first",
        "Without their bodies. Those that were sent again are left out unless they are asked for.",
        tag="control",
        parameters=(*FILTERS, LIMIT, CURSOR),
        answers=page(DeadLetterPage),
        problems=("bad_parameter", "unavailable"),
    ),
    Route(
        "POST",
        "/dead-letters/redrive",
        "redriveDeadLetters",
        redrive_letters,
        "Send again all that fit",
        "Each once, to the queue that it came from. With `dryRun` they are only counted.",
        tag="control",
        parameters=(DRY_RUN,),
        headers=(KEY,),
        body=RedriveDemand,
        answers={200: json_of(RedrivenBody, "They are on their way.", REPEATED)},
        problems=("bad_parameter", "unavailable", *KEY_PROBLEMS, *BODY_PROBLEMS),
    ),
    Route(
        "GET",
        _ONE,
        "getDeadLetter",
        show_letter,
        "Show one",
        tag="control",
        answers={200: json_of(DeadLetterBody, "As it is now.")},
        problems=_PROBLEMS,
    ),
    Route(
        "PATCH",
        _ONE,
        "editDeadLetter",
        edit_letter,
        "Change its body",
        "Before it is sent again.",
        tag="control",
        headers=(KEY,),
        body=BodyDemand,
        answers=_SHOWN,
        problems=(*_ACTED, "illegal_transition"),
    ),
    Route(
        "POST",
        f"{_ONE}/redrive",
        "redriveDeadLetter",
        redrive_letter,
        "Send it again",
        "To the queue that it came from. Asking again sends nothing more; if it dies again, it is here again.",
        tag="control",
        headers=(KEY,),
        body=Remark,
        answers=_SHOWN,
        problems=(*_ACTED, "illegal_transition"),
    ),
    Route(
        "DELETE",
        _ONE,
        "dropDeadLetter",
        drop_letter,
        "Forget it",
        "The audit keeps that it was there.",
        tag="control",
        headers=(KEY,),
        parameters=(REASON,),
        answers={200: json_of(DeadLetterBody, "As it was.", REPEATED)},
        problems=_ACTED,
    ),
)
