"""Saga routes: the catalogue, and the calls for instances of any saga."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.responses import Response

from orchestrix.api.actions import routes as actions
from orchestrix.api.headers import START_HEADERS
from orchestrix.api.instances import kinds, reads
from orchestrix.api.instances.kinds import InstanceKind
from orchestrix.api.instances.lists import KEY, InstanceQuery, list_instances, query_for
from orchestrix.api.instances.start import NewInstance, start
from orchestrix.api.operations import Call, Operation, Operations
from orchestrix.api.problems import Problem
from orchestrix.api.request_body import checked_data
from orchestrix.api.sagas.models import CatalogueBody, NewSaga, SagaVersionsBody, VersionBody, models
from orchestrix.persistence.sagas import definitions
from orchestrix.persistence.sagas.definitions import StoredDefinition
from orchestrix.resource import APP, APPS, Resource
from orchestrix.saga.catalog import Catalog

PATH: Final = "/sagas/{name}"

catalogue = Operations("sagas")


@catalogue.get("/sagas")
async def list_catalogue(call: Call) -> CatalogueBody:
    """List the sagas and their versions.

    Each with its definition, and with how many instances of it are live.
    """
    async with call.context.database.read() as connection:
        rows = {one.key: one for one in await definitions.all_of(connection)}
        live = await definitions.live_states(connection)
    catalog = call.context.catalog
    known = {(saga.name, saga.version) for saga in catalog}
    versions: dict[str, list[VersionBody]] = {}
    for key in sorted({*rows, *live, *known}):
        versions.setdefault(key[0], []).append(_version(key, rows.get(key), catalog, live.get(key, {})))
    paths = {one.saga.name: one.path for one in call.context.resources}
    return CatalogueBody(
        items=[
            SagaVersionsBody(
                saga=name,
                path=paths.get(name, f"/sagas/{name}"),
                starts=saga.version if (saga := catalog.startable(name)) else None,
                versions=found,
            )
            for name, found in versions.items()
        ]
    )


def _version(key: tuple[str, int], row: StoredDefinition | None, catalog: Catalog, live: dict[str, int]) -> VersionBody:
    return VersionBody(
        version=key[1],
        form=row and row.form,
        digest=row and row.digest,
        definition=dict(row.body) if row else None,
        runs_here=catalog.version(*key) is not None,
        live=live,
    )


def operations_of(resources: Iterable[Resource]) -> list[Operation]:
    """The calls for instances of any saga. Where apps are one of `resources`, they are started at its path alone."""
    has_apps = any(one.saga.name == APP for one in resources)
    kind_of = kinds.named({one.saga.name: one.key_name for one in resources})
    body, page, preview = models(resources)
    elsewhere = f" Instances of the saga `{APP}` are created by `POST {APPS}`." if has_apps else ""
    operations = Operations("sagas", a_one="an instance")

    @operations.post(
        PATH,
        of=_not_apps(kind_of) if has_apps else kind_of,
        about=f"`key` is unique within the saga.{elsewhere}",
        answer=body,
        headers=START_HEADERS,
        problems=("already_exists", *(("use_apps",) if has_apps else ())),
    )
    async def start_saga(call: Call, kind: InstanceKind, new: NewSaga) -> Response:
        """Start an instance of a saga."""
        return await start(call, kind, NewInstance(new.key, new.createdBy, checked_data(kind.saga, new.data)))

    @operations.get(PATH, of=kind_of, query=query_for(KEY), answer=page)
    async def list_sagas(call: Call, kind: InstanceKind, query: InstanceQuery) -> Response:
        """List the instances of a saga.

        The newest first, unless `sort` says otherwise.
        """
        return await list_instances(call, kind, KEY, query)

    reads.declare(operations, PATH, "Saga", kind_of, body)
    actions.declare(operations, PATH, "Saga", kind_of, body, preview)
    return operations.all


def _not_apps(kind_of: kinds.KindOf) -> kinds.KindOf:
    def of(call: Call) -> InstanceKind:
        kind = kind_of(call)
        if kind.saga.name == APP:
            link = {"Link": f'<{APPS}>; rel="alternate"'}
            raise Problem("use_apps", f"Apps are created by POST {APPS}.", headers=link)
        return kind

    return of
