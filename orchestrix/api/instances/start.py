"""Start: starts a saga over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from orchestrix.api.guards.auth import ANONYMOUS
from orchestrix.api.headers import CORRELATION, correlation_id
from orchestrix.api.idempotency import repeated
from orchestrix.api.instances.kinds import InstanceKind
from orchestrix.api.instances.reads import shown
from orchestrix.api.operations import Call
from orchestrix.api.problems import Problem
from orchestrix.api.traces.server_span import about_instance
from orchestrix.engine.requests import ExistingSaga, StartedSaga, StartRequest
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart
from orchestrix.telemetry import tracing


@dataclass(frozen=True, slots=True)
class NewInstance:
    """Which instance the client asks for."""

    key: str
    created_by: str
    data: dict[str, Any]


async def start(call: Call, kind: InstanceKind, request: NewInstance) -> Response:
    """Commits the instance and answers 200, or raises `Problem`."""
    context = tracing.current_context()
    wanted = SagaStart(
        key=request.key,
        created_by=request.created_by,
        correlation_id=correlation_id(call.request),
        data=request.data,
        traceparent=None if context is None else context.traceparent,
        tracestate=None if context is None else context.tracestate,
        actor=call.actor if call.actor != ANONYMOUS else None,
    )

    def answer(instance: Instance) -> Response:
        headers = {"Location": kind.link(instance.id), CORRELATION: instance.correlation_id}
        return shown(kind, instance, headers)

    result = await call.context.starter.start(StartRequest(kind.saga.name, wanted, call.key(answer)))
    match result:
        case StartedSaga(instance):
            about_instance(instance)
            return answer(instance)
        case ExistingSaga(existing):
            link = kind.link(existing) if existing is not None else None
            one = f"an instance of {kind.saga.name} with the name {request.key!r}"
            raise Problem("already_exists", f"Already exists: {one}. Choose another name.", existing=link)
        case _:
            return repeated(result)
