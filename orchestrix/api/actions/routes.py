"""Action routes: the calls by which an operator acts on a saga, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import Response

from orchestrix.api.actions.models import (
    DeadlineAction,
    EditAction,
    Redispatch,
    RedispatchBody,
    RedispatchPreview,
    RetryAction,
    SkipAction,
)
from orchestrix.api.answers import JSON, respond
from orchestrix.api.dead_letters.models import DryRunQuery
from orchestrix.api.headers import IDEMPOTENCY_KEY, IF_MATCH, if_match, moved_on
from orchestrix.api.idempotency import repeated
from orchestrix.api.instances.kinds import InstanceKind, InstanceRef, KindOf, one_of
from orchestrix.api.instances.models import ChangeBody, PreviewBase
from orchestrix.api.instances.reads import shown
from orchestrix.api.operations import Call, Handler, Operations
from orchestrix.api.problems import Problem, as_sentence, invalid_body, not_found
from orchestrix.api.traces.server_span import about_instance
from orchestrix.api.validation_errors import UNSEEN, wrong_fields
from orchestrix.api.values import NO_REASON, OptionalReason, ReasonQuery, RequiredReason, reason_of
from orchestrix.engine.control import Action, ActionResult, VersionMismatch
from orchestrix.errors import Invalid, NotFound
from orchestrix.saga.actions.apply import InvalidActionError, unchanged
from orchestrix.saga.actions.requests import ActionNotAllowed, ActionRequest, SagaAction
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.messages import dump

DONE: Final = "As it is from now on; with `dryRun`, as it would be."
ACTIONS: Final[tuple[tuple[SagaAction, str, type[BaseModel], str, str], ...]] = (
    (
        SagaAction.RETRY,
        "POST /retry",
        RetryAction,
        "Retry the failed step of {}",
        "Ends the wait for the next try, retries a step that is held or an undo that has failed, or starts a "
        "failed run again; with `data`, on changed data.",
    ),
    (
        SagaAction.SKIP,
        "POST /skip",
        SkipAction,
        "Skip the present step of {}",
        "It goes on as if the step had succeeded; where an undo has failed, as if the step had been undone.",
    ),
    (
        SagaAction.PAUSE,
        "POST /pause",
        RequiredReason,
        "Pause {}",
        "Nothing more is sent. What workers are processing goes on, and its success counts; its failure is judged "
        "when the pause ends.",
    ),
    (
        SagaAction.RESUME,
        "POST /resume",
        RequiredReason,
        "Resume {}",
        "Sends what is due, and waits on for the rest. Also releases what is held, and a copy of another "
        "installation's.",
    ),
    (
        SagaAction.CANCEL,
        "POST /cancel",
        RequiredReason,
        "Cancel {}",
        "What was done is undone, in reverse order; a step in progress is waited for, then undone too.",
    ),
    (
        SagaAction.TERMINATE,
        "POST /terminate",
        RequiredReason,
        "Terminate {}",
        "At once; nothing is undone.",
    ),
    (
        SagaAction.EDIT,
        "PATCH",
        EditAction,
        "Edit the data of {}",
        "A merge patch, checked by the saga's model. Only while it is blocked or has failed.",
    ),
    (
        SagaAction.SET_DEADLINE,
        "PATCH /deadline",
        DeadlineAction,
        "Set or extend the deadline of {}",
        "The deadline of what it waits for. If the whole run has a deadline that would come earlier, that one is "
        "moved to the same time.",
    ),
)
"""Each with its method and the end of its path, its body, and what the document says of it."""

redispatches = Operations("control")


class DeadlineQuery(DryRunQuery, ReasonQuery):
    """Whether anything is to change, and why."""


def declare(operations: Operations, path: str, noun: str, kind_of: KindOf, answer: Any, preview: Any) -> None:
    """The actions on one instance below `path`; they answer an `answer`, or a `preview` where nothing is to change."""
    more: dict[str, Any] = {
        "of": one_of(kind_of),
        "answer": answer,
        "or_answer": preview,
        "done": DONE,
        "headers": (IDEMPOTENCY_KEY, IF_MATCH),
        "problems": ("illegal_transition", "invalid_body"),
    }
    for action, place, body, summary, about in ACTIONS:
        method, _, suffix = place.partition(" ")
        name, texts, refusal = f"{_camel(action)}{noun}", operations.worded(summary), partial(_refusal, action)
        how = {"name": name, "summary": texts, "about": about, "body": body, "refusal": refusal, **more}
        operations.on(method, f"{path}/{{id}}{suffix}", **how)(_acting(action))
    refusal = partial(_refusal, SagaAction.CANCEL_DEADLINE)
    operations.delete(f"{path}/{{id}}/deadline", name=f"cancelDeadline{noun}", refusal=refusal, **more)(cancel_deadline)


def _acting(action: SagaAction) -> Handler:
    async def act(call: Call, ref: InstanceRef, query: DryRunQuery, body: Any) -> Response:
        fields = body.request_fields() if hasattr(body, "request_fields") else {}
        request = ActionRequest(action, call.actor, body.reason or NO_REASON, **fields)
        return await _act(call, ref, request, dry_run=query.dry_run)

    return act


async def cancel_deadline(call: Call, ref: InstanceRef, query: DeadlineQuery, why: OptionalReason) -> Response:
    """Remove the deadline of {}.

    What it waits for, and the whole run, may take any time.
    """
    reason = reason_of(query, why)
    request = ActionRequest(SagaAction.CANCEL_DEADLINE, call.actor, reason)
    return await _act(call, ref, request, {"reason": reason}, dry_run=query.dry_run)


async def _act(
    call: Call, ref: InstanceRef, request: ActionRequest, sent: Mapping[str, Any] | None = None, *, dry_run: bool
) -> Response:
    """Does it, or returns what it would do. `sent` is what its key is for, if that is not the body."""
    kind, control = ref.kind, call.context.control
    action = Action(kind.saga.name, ref.id, request, if_match(call.request), dry_run)
    key = call.key(partial(shown, kind), sent)
    if dry_run:
        return _preview(kind, await control.act(action), request.verb)
    done = await control.act(action) if key is None else await control.act_once(action, key)
    if not isinstance(done, ActionResult):
        return repeated(done)
    about_instance(done.instance)
    return shown(kind, done.instance)


def _preview(kind: InstanceKind, done: ActionResult, verb: SagaAction) -> Response:
    changes = PreviewBase(
        history=[ChangeBody.of(change, links=None) for change in done.history],
        undo=list(done.undo),
        command=done.command.type if done.command else None,
        note=None if done.history else unchanged(done.instance, verb),
    )
    body = {"dryRun": True, kind.member: kind.view(done.instance), **changes.model_dump(mode="json")}
    return Response(dump(body), media_type=JSON)


def _refusal(verb: SagaAction, error: Exception, ref: InstanceRef) -> Problem | None:
    match error:
        case NotFound():
            return not_found(f"{ref.kind.saga.name} {ref.id}")
        case ActionNotAllowed():
            return Problem("illegal_transition", as_sentence(error), allowed=[verb.value for verb in error.allowed])
        case VersionMismatch():
            return moved_on(error.current)
        case InvalidActionError():
            return invalid_body(wrong_fields(error.errors, None))
        case InvalidDataError():
            return _bad_data(ref.kind, error, verb)
        case Invalid():
            return invalid_body([{"pointer": "", "detail": str(error).removesuffix(".")}])
        case _:
            return None


def _bad_data(kind: InstanceKind, refused: InvalidDataError, verb: SagaAction) -> Problem:
    """What the saga's model refuses. It has seen the row's data too, which are not known here."""
    if verb is SagaAction.SKIP:  # its errors name the field themselves
        errors = [{**error, "loc": error["loc"][1:]} for error in refused.errors]
        return invalid_body(wrong_fields(errors, kind.saga.data, UNSEEN, "output"))
    return invalid_body(wrong_fields(refused.errors, kind.saga.data, UNSEEN, "data"))


def _camel(action: SagaAction) -> str:
    first, *others = action.value.split("-")
    return first + "".join(word.capitalize() for word in others)


@redispatches.post("/redispatch", or_answer=RedispatchPreview, headers=(IDEMPOTENCY_KEY,), problems=("not_found",))
async def redispatch(call: Call, wanted: Redispatch) -> RedispatchBody | Response:
    """Send outstanding commands again.

    The commands that live sagas wait for, with the same ids: a worker that has handled one already drops the copy.
    What waits for its next try is not sent.
    """
    if wanted.saga is not None and call.context.catalog.saga(wanted.saga) is None:
        raise not_found(f"saga {wanted.saga[:60]!r}")
    sagas, key = None if wanted.saga is None else [wanted.saga], call.key(_sent)
    by, again = {"actor": call.actor, "reason": wanted.reason or NO_REASON}, call.context.redispatcher
    if wanted.dryRun:
        return respond(RedispatchPreview(redispatched=await again.count(sagas, wanted.ids)))
    if key is None:
        return _sent(await again.redispatch(sagas, wanted.ids, **by))
    done = await again.redispatch_once(sagas, wanted.ids, **by, key=key)
    return _sent(done) if isinstance(done, int) else repeated(done)


def _sent(count: int) -> RedispatchBody:
    return RedispatchBody(redispatched=count)
