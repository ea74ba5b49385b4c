"""Saga routes: the calls for sagas of any name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel, create_model
from starlette.responses import Response

from orchestrix.api import control, instance_resource, instance_routes, listing
from orchestrix.api.instance_resource import KindOf
from orchestrix.api.listing import KEY, list_instances
from orchestrix.api.problems import Problem
from orchestrix.api.request_body import NewSaga, checked_data, parsed, read_object
from orchestrix.api.routes import Call, Handler, Route
from orchestrix.api.schemas import PageBase, PreviewBase, SagaBody, SagaPage, SagaPreview
from orchestrix.api.start import Wish, start
from orchestrix.resource import APP, APPS, Resource

PATH: Final = "/sagas/{name}"


def routes(resources: Iterable[Resource]) -> tuple[Route, ...]:
    """The calls. Where apps are one of `resources`, they are started at its path alone."""
    has_apps = any(one.saga.name == APP for one in resources)
    kind_of = instance_resource.named({one.saga.name: one.key_name for one in resources})
    body, page, preview = models(resources)
    elsewhere = f" Instances of the saga `{APP}` are created by `POST {APPS}`." if has_apps else ""
    return (
        Route(
            "POST",
            PATH,
            "startSaga",
            _creating(kind_of, has_apps),
            "Start an instance of a saga",
            f"`key` is unique within the saga.{elsewhere}",
            tag="sagas",
            headers=instance_routes.START_HEADERS,
            body=NewSaga,
            answers=instance_routes.started(body),
            problems=("not_found", *(("use_apps",) if has_apps else ()), *instance_routes.START_PROBLEMS),
        ),
        Route(
            "GET",
            PATH,
            "listSagas",
            _listing(kind_of),
            "List the instances of a saga",
            tag="sagas",
            parameters=listing.parameters(KEY),
            answers=instance_routes.page(page),
            problems=("not_found", "bad_parameter", "unavailable"),
        ),
        *instance_routes.of_one("sagas", PATH, "Saga", kind_of, body),
        *control.of_one("sagas", PATH, "Saga", kind_of, body, preview),
    )


def models(resources: Iterable[Resource]) -> tuple[type[BaseModel], type[BaseModel], type[BaseModel]]:
    """An instance, a page of them, and a preview. Instances of resources have their names twice."""
    names: dict[str, Any] = {one.key_name: (str, "") for one in resources if one.key_name != KEY}
    if not names:
        return SagaBody, SagaPage, SagaPreview
    also = "".join(
        f" Those of the saga `{one.saga.name}` have their `{one.key_name}` too."
        for one in resources
        if one.key_name in names
    )
    about: dict[str, Any] = {"__doc__": f"{SagaBody.__doc__}{also}"}
    body = create_model("SagaBody", __base__=SagaBody, **about, **names)
    items: Any = (list[body], ...)
    page = create_model("SagaPage", __base__=PageBase, __doc__=SagaPage.__doc__, items=items)
    instance: Any = (body, SagaPreview.model_fields["instance"])
    return body, page, create_model("SagaPreview", __base__=PreviewBase, __doc__=SagaPreview.__doc__, instance=instance)


def _creating(kind_of: KindOf, has_apps: bool) -> Handler:
    async def create(call: Call) -> Response:
        kind = kind_of(call)
        if has_apps and kind.saga.name == APP:
            link = {"Link": f'<{APPS}>; rel="alternate"'}
            raise Problem("use_apps", f"Apps are created by POST {APPS}.", headers=link)
        body = await read_object(call.request)
        new = parsed(NewSaga, body)
        return await start(call, kind, Wish(new.key, new.createdBy, checked_data(kind.saga, new.data)), body)

    return create


def _listing(kind_of: KindOf) -> Handler:
    async def list_sagas(call: Call) -> Response:
        return await list_instances(call, kind_of(call), KEY)

    return list_sagas
