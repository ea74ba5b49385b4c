"""How is sent again what sagas have out?"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from app.api.bodies import parsed, read_perhaps
from app.api.control import BODY_PROBLEMS
from app.api.demands import RedispatchDemand
from app.api.problems import not_found
from app.api.routes import Call, Route
from app.api.schemas import RedispatchBody
from app.api.shared import json_of
from app.api.start import JSON
from sagas.engine.messages import dump


async def redispatch(call: Call) -> Response:
    """`POST /redispatch`."""
    wanted = parsed(RedispatchDemand, await read_perhaps(call.request))
    if wanted.saga is not None and call.context.catalog.saga(wanted.saga) is None:
        raise not_found(f"saga {wanted.saga[:60]!r}")
    sagas = None if wanted.saga is None else [wanted.saga]
    again = call.context.redispatcher.redispatch
    count = await again(sagas, wanted.ids, actor=call.actor, reason=wanted.reason)
    return Response(dump({"redispatched": count}), media_type=JSON)


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
        answers={200: json_of(RedispatchBody, "They are on their way.")},
        problems=("not_found", "bad_parameter", "unavailable", *BODY_PROBLEMS),
    ),
)
