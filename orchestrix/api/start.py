"""Start: starts a saga over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api.auth import ANONYMOUS
from orchestrix.api.headers import CORRELATION, correlation_id, trace_context
from orchestrix.api.idempotency import key_of, repeated
from orchestrix.api.instance_resource import InstanceResource
from orchestrix.api.problems import Problem
from orchestrix.api.routes import Call
from orchestrix.api.serializers import etag
from orchestrix.domain.idempotency import StoredAnswer
from orchestrix.engine.requests import ExistingSaga, IdempotencyKey, StartedSaga, StartRequest, StartResult
from orchestrix.saga.messages import dump
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Wish:
    """Which instance the client wants. Its saga takes the data."""

    key: str
    created_by: str
    data: dict[str, Any]


async def start(call: Call, kind: InstanceResource, wish: Wish, body: Mapping[str, Any]) -> Response:
    """Commits the instance and answers 200, or raises `Problem`. `body` is what the client sent, for its key."""
    traceparent, tracestate = trace_context(call.request)
    wanted = SagaStart(
        key=wish.key,
        created_by=wish.created_by,
        correlation_id=correlation_id(call.request),
        data=wish.data,
        traceparent=traceparent,
        tracestate=tracestate,
        actor=call.actor if call.actor != ANONYMOUS else None,
    )
    key: IdempotencyKey | None = key_of(
        call.request, call.actor, body, lambda instance, fingerprint: _stored(kind, instance, fingerprint)
    )
    result = await call.context.starter.start(StartRequest(kind.saga.name, wanted, key))
    return _answer(kind, wish, result)


def _answer(kind: InstanceResource, wish: Wish, result: StartResult) -> Response:
    match result:
        case StartedSaga(instance):
            return Response(_body(kind, instance), headers=_headers(kind, instance))
        case ExistingSaga(existing):
            link = kind.link(existing) if existing is not None else None
            raise Problem(
                "already_exists", f"There is one named {wish.key!r} already: choose another name.", existing=link
            )
        case _:
            return repeated(result)


def _stored(kind: InstanceResource, instance: Instance, fingerprint: str) -> StoredAnswer:
    return StoredAnswer(fingerprint, 200, _headers(kind, instance), _body(kind, instance))


def _body(kind: InstanceResource, instance: Instance) -> bytes:
    return dump(kind.view(instance))


def _headers(kind: InstanceResource, instance: Instance) -> dict[str, str]:
    return {
        "Content-Type": JSON,
        "Location": kind.link(instance.id),
        "ETag": etag(instance),
        CORRELATION: instance.correlation_id,
    }
