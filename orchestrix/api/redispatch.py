"""Redispatch route: sends the commands that sagas have in flight again."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.responses import Response

from orchestrix.api.action_requests import RedispatchDemand
from orchestrix.api.control import BODY_PROBLEMS
from orchestrix.api.idempotency import key_of, repeated, stored
from orchestrix.api.instance_routes import KEY, KEY_PROBLEMS, REPEATED, json_of
from orchestrix.api.problems import not_found
from orchestrix.api.request_body import parsed, read_perhaps
from orchestrix.api.routes import Call, Route
from orchestrix.api.schemas import RedispatchBody
from orchestrix.api.start import JSON
from orchestrix.domain.idempotency import StoredAnswer
from orchestrix.saga.messages import dump


async def redispatch(call: Call) -> Response:
    """`POST /redispatch`."""
    body = await read_perhaps(call.request)
    wanted = parsed(RedispatchDemand, body)
    if wanted.saga is not None and call.context.catalog.saga(wanted.saga) is None:
        raise not_found(f"saga {wanted.saga[:60]!r}")
    sagas = None if wanted.saga is None else [wanted.saga]
    key = key_of(call.request, call.actor, body, partial(_kept, call))
    by, again = {"actor": call.actor, "reason": wanted.reason}, call.context.redispatcher
    if key is None:
        return Response(_told(await again.redispatch(sagas, wanted.ids, **by)), media_type=JSON)
    done = await again.redispatch_once(sagas, wanted.ids, **by, key=key)
    return Response(_told(done), media_type=JSON) if isinstance(done, int) else repeated(done)


def _kept(call: Call, count: int, fingerprint: str) -> StoredAnswer:
    return stored(call.request, _told(count), fingerprint)


def _told(count: int) -> bytes:
    return dump({"redispatched": count})


ROUTES: Final = (
    Route(
        "POST",
        "/redispatch",
        "redispatch",
        redispatch,
        "Send again what sagas have out",
        "Under the same ids, so who has it already loses nothing by it. What waits for its next try is not sent.",
        tag="control",
        body=RedispatchDemand,
        headers=(KEY,),
        answers={200: json_of(RedispatchBody, "They are on their way.", REPEATED)},
        problems=("not_found", "bad_parameter", "unavailable", *KEY_PROBLEMS, *BODY_PROBLEMS),
    ),
)
