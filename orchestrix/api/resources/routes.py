"""Resource routes: the calls at the paths that authors have chosen for their sagas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.responses import Response

from orchestrix.api.actions import routes as actions
from orchestrix.api.headers import START_HEADERS
from orchestrix.api.instances import kinds, reads
from orchestrix.api.instances.kinds import KindOf
from orchestrix.api.instances.lists import InstanceQuery, list_instances, query_for
from orchestrix.api.instances.start import start
from orchestrix.api.operations import Call, Handler, Operation, Operations
from orchestrix.api.request_body import read_object
from orchestrix.api.resources.answers import AnswerModel, member_of, page_of, preview_of
from orchestrix.api.resources.names import Noun, noun_of
from orchestrix.api.resources.requests import RequestModel
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

    @property
    def about(self) -> str:
        """What the document says of them."""
        return (
            self.resource.about or f"{self.noun.many.capitalize()}: instances of the saga `{self.resource.saga.name}`."
        )

    def kind_of(self) -> KindOf:
        """Which instances are meant."""
        resource = self.resource
        return kinds.at(resource.path, resource.saga.name, self.answer.view, member_of(self.noun))


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


def operations_of(one: Served, states: Collection[str] = ()) -> list[Operation]:
    """The calls of one resource, whose instances can be in these `states`."""
    path, noun, kind_of, answer = one.resource.path, one.noun, one.kind_of(), one.resource.answer
    operations = Operations(one.tag, a_one=noun.a_one)
    operations.post(
        path,
        name=f"create{noun.name}",
        summary=f"Create {noun.a_one}",
        about=f"Commits the {noun.one} and answers at once; workers do the steps of the saga "
        f"`{one.resource.saga.name}` after that.",
        body=one.request.model,
        writes_body=False,
        answer=answer,
        headers=START_HEADERS,
        problems=("already_exists",),
    )(_creating(one, kind_of))
    query, about = query_for(one.resource.key_name, states), "The newest first, unless `sort` says otherwise."
    listed = operations.get(
        path, name=f"list{noun.names}", summary=f"List {noun.many}", about=about, query=query, answer=one.page
    )
    listed(_listing(one, kind_of))
    reads.declare(operations, path, noun.name, kind_of, answer)
    actions.declare(operations, path, noun.name, kind_of, answer, one.preview)
    return operations.all


def _creating(one: Served, kind_of: KindOf) -> Handler:
    async def create(call: Call) -> Response:
        kind = kind_of(call)
        call.sent = await read_object(call.request)
        raw = await call.request.body()
        return await start(call, kind, one.request.wish(kind.saga, call.sent, raw, call.actor))

    return create


def _listing(one: Served, kind_of: KindOf) -> Handler:
    async def list_all(call: Call, query: InstanceQuery) -> Response:
        return await list_instances(call, kind_of(call), one.resource.key_name, query)

    return list_all
