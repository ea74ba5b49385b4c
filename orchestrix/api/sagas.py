"""Which calls are there for sagas of any name?"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from orchestrix.api import control, kinds, listing, shared
from orchestrix.api.bodies import NewSaga, parsed, read_object
from orchestrix.api.listing import list_instances
from orchestrix.api.problems import Problem
from orchestrix.api.routes import Call, Route
from orchestrix.api.schemas import SagaBody, SagaPage, SagaPreview
from orchestrix.api.start import Wish, start
from orchestrix.api.views import APP

NAME: Final = "key"


async def create(call: Call) -> Response:
    """`POST /sagas/{name}`."""
    kind = kinds.named(call)
    if kind.saga.name == APP:
        raise Problem("use_apps", "Apps are created by POST /apps.", headers={"Link": '</apps>; rel="alternate"'})
    body = await read_object(call.request)
    new = parsed(NewSaga, body)
    return await start(call, kind, Wish(new.key, new.createdBy, new.data), body)


async def list_sagas(call: Call) -> Response:
    """`GET /sagas/{name}`."""
    return await list_instances(call, kinds.named(call), NAME)


ROUTES: Final = (
    Route(
        "POST",
        "/sagas/{name}",
        "startSaga",
        create,
        "Start an instance of a saga",
        "`key` is unique within the saga. Instances of the saga `app` are created by `POST /apps`.",
        tag="sagas",
        headers=shared.START_HEADERS,
        body=NewSaga,
        answers=shared.started(SagaBody),
        problems=("not_found", "use_apps", *shared.START_PROBLEMS),
    ),
    Route(
        "GET",
        "/sagas/{name}",
        "listSagas",
        list_sagas,
        "List the instances of a saga",
        tag="sagas",
        parameters=listing.parameters(NAME),
        answers=shared.page(SagaPage),
        problems=("not_found", "bad_parameter", "unavailable"),
    ),
    *shared.of_one("sagas", "/sagas/{name}", "Saga", kinds.named, SagaBody),
    *control.of_one("sagas", "/sagas/{name}", "Saga", kinds.named, SagaBody, SagaPreview),
)
