"""Resources: the calls at the paths that authors have chosen for their sagas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.responses import Response

from orchestrix.api import control, instance_resource, instance_routes, listing
from orchestrix.api.answers import AnswerModel, member_of, page_of, preview_of
from orchestrix.api.instance_resource import KindOf
from orchestrix.api.listing import list_instances
from orchestrix.api.operation_names import Noun, noun_of
from orchestrix.api.request_body import read_object
from orchestrix.api.requests import RequestModel
from orchestrix.api.routes import Call, Handler, Route
from orchestrix.api.start import start
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Served:
    """A resource with all that is made of it once."""

    resource: Resource
    noun: Noun
    request: RequestModel
    answer: AnswerModel
    page: type[BaseModel]
    preview: type[BaseModel]

    @classmethod
    def of(cls, resource: Resource) -> Served:
        """Raises `DefinitionError`."""
        noun, request = noun_of(resource.path), RequestModel.of(resource)
        made = page_of(resource.answer, noun), preview_of(resource.answer, noun)
        return cls(resource, noun, request, AnswerModel.of(resource, request), *made)

    @property
    def tag(self) -> str:
        """Under what the document has its calls."""
        return self.resource.path[1:]

    def kind_of(self) -> KindOf:
        """Which instances are meant."""
        resource = self.resource
        return instance_resource.at(resource.path, resource.saga.name, self.answer.view, member_of(self.noun))


def served(resources: Sequence[Resource], catalog: Catalog) -> tuple[Served, ...]:
    """All of them. Raises `DefinitionError` for those that cannot be served, or not beside each other."""
    known = {saga.name for saga in catalog}
    paths: dict[str, Resource] = {}
    sagas: dict[str, Resource] = {}
    for one in resources:
        name = one.saga.name
        if name not in known:
            raise one.refused(f"this process has no saga {name!r}: name its module in `sagas`, too")
        if paths.setdefault(one.path, one) is not one:
            raise one.refused("there are two resources at this path: choose another one")
        if sagas.setdefault(name, one) is not one:
            raise one.refused(f"the saga {name!r} is at {sagas[name].path} already: a saga has one path")
    return tuple(Served.of(one) for one in resources)


def routes(all_served: Iterable[Served]) -> tuple[Route, ...]:
    """Their calls."""
    return tuple(route for one in all_served for route in _routes(one))


def _routes(one: Served) -> tuple[Route, ...]:
    path, noun, tag, kind_of = one.resource.path, one.noun, one.tag, one.kind_of()
    saga, answer = one.resource.saga.name, one.resource.answer
    return (
        Route(
            "POST",
            path,
            f"create{noun.name}",
            _creating(one, kind_of),
            f"Create {noun.a_one}",
            f"Commits the {noun.one} and answers at once; the steps of the saga `{saga}` are done behind that.",
            tag=tag,
            headers=instance_routes.START_HEADERS,
            body=one.request.model,
            answers=instance_routes.started(answer),
            problems=instance_routes.START_PROBLEMS,
        ),
        Route(
            "GET",
            path,
            f"list{noun.names}",
            _listing(one, kind_of),
            f"List {noun.many}",
            tag=tag,
            parameters=listing.parameters(one.resource.key_name),
            answers=instance_routes.page(one.page),
            problems=("bad_parameter", "unavailable"),
        ),
        *instance_routes.of_one(tag, path, noun.name, kind_of, answer),
        *control.of_one(tag, path, noun.name, kind_of, answer, one.preview),
    )


def _creating(one: Served, kind_of: KindOf) -> Handler:
    async def create(call: Call) -> Response:
        kind = kind_of(call)
        body = await read_object(call.request)
        raw = await call.request.body()
        return await start(call, kind, one.request.wish(kind.saga, body, raw, call.actor), body)

    return create


def _listing(one: Served, kind_of: KindOf) -> Handler:
    async def list_all(call: Call) -> Response:
        return await list_instances(call, kind_of(call), one.resource.key_name)

    return list_all
