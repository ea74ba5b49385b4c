"""Control routes: the calls by which a person acts on a saga, and their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from orchestrix.api import serializers
from orchestrix.api.action_requests import (
    NO_REASON,
    DeadlineDemand,
    Demand,
    EditDemand,
    RetryDemand,
    SkipDemand,
    Withdrawal,
    sentence,
)
from orchestrix.api.headers import CORRELATION, correlation_id, if_match, moved_on
from orchestrix.api.idempotency import key_of, repeated
from orchestrix.api.instance_resource import InstanceResource, KindOf, instance_id
from orchestrix.api.instance_routes import KEY, REPEATED, SHOWN, header, json_of
from orchestrix.api.parameters import Parameter
from orchestrix.api.problems import Problem, bad_parameter, invalid_body, not_found, said
from orchestrix.api.request_body import parsed, read_object
from orchestrix.api.routes import Call, Handler, Route
from orchestrix.api.schemas import WhyBody
from orchestrix.api.start import JSON
from orchestrix.api.validation_errors import UNSEEN, wrong_fields
from orchestrix.domain.idempotency import StoredAnswer
from orchestrix.engine.actions import Action, ActionResult, VersionMismatch
from orchestrix.engine.requests import IdempotencyKey, Repeated
from orchestrix.errors import Invalid, NotFound
from orchestrix.saga.actions.control import InvalidActionError, unchanged
from orchestrix.saga.actions.requests import ActionNotAllowed, ActionRequest, SagaAction
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.messages import dump
from orchestrix.saga.state import Instance

DRY_RUN: Final = Parameter(
    "dryRun", "Tell what would happen, and change nothing.", {"type": "boolean", "default": False}
)
REASON: Final = Parameter("reason", "Why; it stands in the history. May be in the body instead.")
IF_MATCH: Final = header("If-Match", "Only if the version is still this one: the ETag that was last seen.")
PROBLEMS: Final = (
    "not_found",
    "bad_parameter",
    "illegal_transition",
    "version_mismatch",
    "idempotency_in_flight",
    "idempotency_key_reused",
    "unavailable",
    "outcome_unknown",
)
BODY_PROBLEMS: Final = ("malformed_json", "body_too_large", "unsupported_media_type", "invalid_body")


class _Verb(NamedTuple):
    """One verb: how it is called over HTTP, with which body, and what it does."""

    verb: SagaAction
    method: str
    suffix: str
    body: type[Demand]
    summary: str
    about: str


_VERBS: Final = (
    _Verb(
        SagaAction.RETRY,
        "POST",
        "/retry",
        RetryDemand,
        "Try again",
        "Ends the wait for the next try, tries anew a step that is held or an undo that has failed, or begins a failed"
        " run again; with `data`, on changed data.",
    ),
    _Verb(
        SagaAction.SKIP,
        "POST",
        "/skip",
        SkipDemand,
        "Go on as if the step had succeeded",
        "Where an undo has failed: go on as if the step had been undone.",
    ),
    _Verb(
        SagaAction.PAUSE,
        "POST",
        "/pause",
        Demand,
        "Send nothing more",
        "What workers have already goes on, and its success counts; its failure is judged at the end of the pause.",
    ),
    _Verb(
        SagaAction.RESUME,
        "POST",
        "/resume",
        Demand,
        "End the pause",
        "Sends what is due, and waits on for the rest. Lets go on what is held, and a copy of another installation's.",
    ),
    _Verb(
        SagaAction.CANCEL,
        "POST",
        "/cancel",
        Demand,
        "Give up, and undo what was done",
        "In reverse order; what is under way is waited for, then undone too.",
    ),
    _Verb(SagaAction.TERMINATE, "POST", "/terminate", Demand, "Give up, and undo nothing", "At once."),
    _Verb(
        SagaAction.EDIT,
        "PATCH",
        "",
        EditDemand,
        "Change the data",
        "A merge patch, checked by the saga's model. Only while it is blocked or has failed.",
    ),
    _Verb(
        SagaAction.SET_DEADLINE,
        "PATCH",
        "/deadline",
        DeadlineDemand,
        "Set or extend the deadline of what it waits for",
        "That of the whole run, where there is one and it would come before, moves with it.",
    ),
)


def of_one(tag: str, path: str, noun: str, kind_of: KindOf, model: type[Any], preview: type[Any]) -> tuple[Route, ...]:
    """The calls about one instance below `path`; they answer a `model`, or a `preview` where nothing is to change."""
    one = f"{path}/{{id}}"
    shapes = {"anyOf": [_reference(model), _reference(preview)]}
    done = json_of(model, "As it is from now on; with `dryRun`, as it would be.", {**SHOWN, **REPEATED})
    done["content"]["application/json"]["schema"] = shapes
    more: dict[str, Any] = {"tag": tag, "headers": (KEY, IF_MATCH), "answers": {200: done}}

    def route(verb: _Verb) -> Route:
        handler, problems = _asking(kind_of, verb), (*PROBLEMS, *BODY_PROBLEMS)
        name = f"{_camel(verb.verb)}{noun}"
        given = {"parameters": (DRY_RUN,), "body": verb.body, "problems": problems, **more}
        return Route(verb.method, one + verb.suffix, name, handler, verb.summary, verb.about, **given)

    return (
        *(route(verb) for verb in _VERBS),
        Route(
            "DELETE",
            f"{one}/deadline",
            f"cancelDeadline{noun}",
            _withdrawing(kind_of),
            "Take the deadline away",
            "What it waits for, and the whole run, may take as long as it takes.",
            parameters=(DRY_RUN, REASON),
            problems=(*PROBLEMS, *BODY_PROBLEMS),
            **more,
        ),
        Route(
            "GET",
            f"{one}/why",
            f"why{noun}",
            _explaining(kind_of),
            "What does it wait for, and what helps?",
            tag=tag,
            answers={200: json_of(WhyBody, "One sentence, and the next action.")},
            problems=("not_found", "bad_parameter", "unavailable"),
        ),
    )


def _asking(kind_of: KindOf, verb: _Verb) -> Handler:
    async def ask(call: Call) -> Response:
        target = _Target.of(call, kind_of)
        body = await read_object(call.request)
        demand = parsed(verb.body, body)
        return await _act(call, target, demand.ask(verb.verb, call.actor), body)

    return ask


def _withdrawing(kind_of: KindOf) -> Handler:
    async def withdraw(call: Call) -> Response:
        target = _Target.of(call, kind_of)
        reason = await reason_of(call)
        return await _act(
            call, target, ActionRequest(SagaAction.CANCEL_DEADLINE, call.actor, reason), {"reason": reason}
        )

    return withdraw


class _Target(NamedTuple):
    """Whom a verb is for, and on which conditions."""

    kind: InstanceResource
    id: int
    version: int | None
    dry_run: bool

    @classmethod
    def of(cls, call: Call, kind_of: KindOf) -> _Target:
        """What path, header and query say. Raises `Problem` 400 or 404."""
        kind = kind_of(call)
        return cls(kind, instance_id(call, kind), if_match(call.request), bool(call.query.flag(DRY_RUN.name)))


async def reason_of(call: Call) -> str:
    """What the query or the body says: not every client can send a body with DELETE."""
    asked = call.query.text(REASON.name)
    try:
        reason = sentence(asked) if asked is not None else None
    except ValueError as refused:
        raise bad_parameter(REASON.name, f"{refused}.") from None
    if await call.request.body():
        reason = parsed(Withdrawal, await read_object(call.request)).reason or reason
    return reason or NO_REASON


def _explaining(kind_of: KindOf) -> Handler:
    async def explain(call: Call) -> Response:
        kind = kind_of(call)
        wanted = instance_id(call, kind)
        with _refusals(kind, wanted):
            found = await call.context.explainer.why(kind.saga.name, wanted)
        body = {
            "id": wanted,
            "saga": kind.saga.name,
            "blocker": found.blocker,
            "sentence": found.sentence,
            "nextAction": found.next_action,
            "since": serializers.perhaps(found.since),
            "nextAt": serializers.perhaps(found.next_at),
        }
        return Response(dump(body), media_type=JSON)

    return explain


async def _act(call: Call, target: _Target, ask: ActionRequest, body: Mapping[str, Any]) -> Response:
    """Does it, or tells what it would do. `body` is what the client sent, for its key."""
    kind = target.kind
    key: IdempotencyKey | None = key_of(
        call.request, call.actor, body, lambda instance, fingerprint: _stored(call, kind, instance, fingerprint)
    )
    with _refusals(kind, target.id, ask.verb):
        action = Action(kind.saga.name, target.id, ask, target.version, target.dry_run)
        acted = await _done(call, action, key)
    if not isinstance(acted, ActionResult):
        return repeated(acted)
    if target.dry_run:
        return Response(dump(_preview(kind, acted, ask.verb)), media_type=JSON)
    return Response(dump(kind.view(acted.instance)), headers=_headers(call, acted.instance))


async def _done(call: Call, action: Action, key: IdempotencyKey | None) -> ActionResult | Repeated:
    if key is None or action.dry_run:  # what changes nothing needs no stored answer
        return await call.context.control.act(action)
    return await call.context.control.act_once(action, key)


def _stored(call: Call, kind: InstanceResource, instance: Instance, fingerprint: str) -> StoredAnswer:
    return StoredAnswer(fingerprint, 200, _headers(call, instance), dump(kind.view(instance)))


def _headers(call: Call, instance: Instance) -> dict[str, str]:
    return {"Content-Type": JSON, "ETag": serializers.etag(instance), CORRELATION: correlation_id(call.request)}


def _preview(kind: InstanceResource, acted: ActionResult, verb: SagaAction) -> dict[str, Any]:
    return {
        "dryRun": True,
        kind.member: kind.view(acted.instance),
        "history": [serializers.change(change) for change in acted.history],
        "undo": list(acted.undo),
        "command": acted.command.type if acted.command else None,
        "note": None if acted.history else unchanged(acted.instance, verb),
    }


@contextmanager
def _refusals(kind: InstanceResource, wanted: int, verb: SagaAction | None = None) -> Iterator[None]:
    """Makes a problem of each way to refuse."""
    try:
        yield
    except NotFound:
        raise not_found(f"{kind.saga.name} {wanted}") from None
    except ActionNotAllowed as refused:
        allowed = [verb.value for verb in refused.allowed]
        raise Problem("illegal_transition", said(refused), allowed=allowed) from None
    except VersionMismatch as other:
        etag = {"ETag": f'"{other.current}"'}
        raise Problem("version_mismatch", moved_on(other.current), headers=etag, current=other.current) from None
    except InvalidActionError as refused:
        raise invalid_body(wrong_fields(refused.errors, None)) from None
    except InvalidDataError as refused:
        raise _bad_data(kind, refused, verb) from None
    except Invalid as refused:
        raise invalid_body([{"pointer": "", "detail": str(refused).removesuffix(".")}]) from None


def _bad_data(kind: InstanceResource, refused: InvalidDataError, verb: SagaAction | None) -> Problem:
    """What the saga's model refuses. It has seen the row's data too, which are not known here."""
    if verb is SagaAction.SKIP:  # its errors name the field themselves
        errors = [{**error, "loc": error["loc"][1:]} for error in refused.errors]
        return invalid_body(wrong_fields(errors, kind.saga.data, UNSEEN, "output"))
    return invalid_body(wrong_fields(refused.errors, kind.saga.data, UNSEEN, "data"))


def _camel(verb: SagaAction) -> str:
    first, *others = verb.value.split("-")
    return first + "".join(word.capitalize() for word in others)


def _reference(model: type[Any]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
