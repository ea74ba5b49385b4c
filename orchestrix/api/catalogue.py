"""Catalogue: the sagas, their versions, and how many instances of each are live."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from orchestrix.api.instance_routes import json_of
from orchestrix.api.routes import Call, Route
from orchestrix.api.start import JSON
from orchestrix.persistence.sagas import definitions
from orchestrix.saga.messages import dump


class VersionBody(BaseModel):
    """One version of a saga. `definition` is null for one that is not stored."""

    model_config = ConfigDict(extra="forbid")

    version: int
    form: int | None = Field(description="The form in which `definition` is written.")
    digest: str | None = Field(description="SHA-256 of what a run of it does.")
    definition: dict[str, Any] | None = Field(description="Steps, messages, times in µs and undo.")
    runsHere: bool = Field(description="Whether this node can run its instances.")
    live: dict[str, int] = Field(description="How many instances have not ended, by state.")


class SagaVersionsBody(BaseModel):
    """A saga with all its versions. `starts` is that of new instances on this node, null where it has no code."""

    model_config = ConfigDict(extra="forbid")

    saga: str
    path: str = Field(description="Where its instances are.")
    starts: int | None
    versions: list[VersionBody]


class CatalogueBody(BaseModel):
    """Every saga, by name."""

    model_config = ConfigDict(extra="forbid")

    items: list[SagaVersionsBody]


async def show(call: Call) -> Response:
    """`GET /sagas`."""
    async with call.context.database.read() as connection:
        rows = {one.key: one for one in await definitions.all_of(connection)}
        live = await definitions.live_states(connection)
    catalog = call.context.catalog
    known = {(saga.name, saga.version) for saga in catalog}
    paths = {one.saga.name: one.path for one in call.context.resources}
    items: dict[str, dict[str, Any]] = {}
    for name, version in sorted({*rows, *live, *known}):
        starts = catalog.startable(name)
        path = paths.get(name, f"/sagas/{name}")
        new: dict[str, Any] = {"saga": name, "path": path, "starts": starts and starts.version, "versions": []}
        item = items.setdefault(name, new)
        row = rows.get((name, version))
        item["versions"].append(
            {
                "version": version,
                "form": row and row.form,
                "digest": row and row.digest,
                "definition": row and dict(row.body),
                "runsHere": catalog.version(name, version) is not None,
                "live": live.get((name, version), {}),
            }
        )
    return Response(dump({"items": list(items.values())}), media_type=JSON)


ROUTES: Final = (
    Route(
        "GET",
        "/sagas",
        "listCatalogue",
        show,
        "List the sagas and their versions",
        "Each with its definition, and with how many instances of it are live.",
        tag="sagas",
        answers={200: json_of(CatalogueBody, "Every saga, by name.")},
        problems=("unavailable",),
    ),
)
