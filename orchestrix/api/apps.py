"""Which calls are there for apps?"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from orchestrix.api import control, kinds, listing, shared
from orchestrix.api.bodies import NewApp, parsed, read_object
from orchestrix.api.listing import list_instances
from orchestrix.api.routes import Call, Route
from orchestrix.api.schemas import AppBody, AppPage, AppPreview
from orchestrix.api.start import Wish, start

NAME: Final = "appName"


async def create(call: Call) -> Response:
    """`POST /apps`."""
    kind = kinds.apps(call)
    body = await read_object(call.request)
    new = parsed(NewApp, body)
    return await start(call, kind, Wish(new.appName, new.createdBy, new.data), body)


async def list_apps(call: Call) -> Response:
    """`GET /apps`."""
    return await list_instances(call, kinds.apps(call), NAME)


ROUTES: Final = (
    Route(
        "POST",
        "/apps",
        "createApp",
        create,
        "Create an app",
        "Commits the app and answers at once; its git repository is created and it is registered behind that.",
        tag="apps",
        headers=shared.START_HEADERS,
        body=NewApp,
        answers=shared.started(AppBody),
        problems=shared.START_PROBLEMS,
    ),
    Route(
        "GET",
        "/apps",
        "listApps",
        list_apps,
        "List apps",
        tag="apps",
        parameters=listing.parameters(NAME),
        answers=shared.page(AppPage),
        problems=("bad_parameter", "unavailable"),
    ),
    *shared.of_one("apps", "/apps", "App", kinds.apps, AppBody),
    *control.of_one("apps", "/apps", "App", kinds.apps, AppBody, AppPreview),
)
