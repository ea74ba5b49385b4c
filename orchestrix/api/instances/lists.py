"""Instance list: which instances a page shows."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, WithJsonSchema, create_model
from starlette.responses import Response

from orchestrix.api import pagination
from orchestrix.api.answers import JSON
from orchestrix.api.instances.kinds import InstanceKind
from orchestrix.api.operations import Call
from orchestrix.api.problems import bad_parameter
from orchestrix.api.query import Flag, Instant, NameText, Paging, Prefix, Text
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.instances import InstanceFilter
from orchestrix.saga.messages import dump

DEFAULT_SORT: Final = "-createdAt"
KEY: Final = "key"
"""What names are called in lists of sagas of any name."""
NAME: Final = "appName"
"""What the order by names is called in cursors, whatever the names are called."""


class InstanceQuery(Paging):
    """Which instances."""

    blank: ClassVar[frozenset[str]] = frozenset({"q"})

    state: tuple[Text, ...] = Field((), description="Only these states. May be repeated.")
    created_by: NameText | None = Field(None, description="Only what this person started.")
    created_after: Instant | None = Field(None, description="Only what was started after this time.")
    created_before: Instant | None = Field(None, description="Only what was started before this time.")
    q: Prefix | None = Field(
        None, description="Only where the name begins so; all when empty. Upper and lower case differ."
    )
    stuck: Flag | None = Field(
        None, description="Only what waits for an operator, the broker or workers that do not run, or is overdue."
    )


def query_for(name: str, states: Collection[str] = ()) -> type[InstanceQuery]:
    """What a list takes whose names are called `name`; the document says the `states`, if it can know them."""
    known = {"enum": sorted(states)} if states else {"format": "saga-state", "pattern": "^[A-Z][A-Z0-9_]{0,39}$"}
    kind: Any = tuple[Annotated[str, WithJsonSchema({"type": "string", **known})], ...]
    state: Any = (kind, InstanceQuery.model_fields["state"])
    names = (name, NAME) if name == KEY else (name,)  # as apps are sorted, which are sagas too
    fields = [f"{sign}{field}" for field in ("createdAt", "updatedAt", *names) for sign in ("", "-")]
    sort: Any = (Literal[tuple(fields)], Field(DEFAULT_SORT, description="The order; `-` descends."))
    return create_model("InstanceQuery", __base__=InstanceQuery, state=state, sort=sort)


async def list_instances(call: Call, kind: InstanceKind, name: str, query: Any) -> Response:
    """One page; the client calls the names `name`. Raises `Problem` 400 for a wrong parameter."""
    sort = query.sort[: -len(name)] + NAME if query.sort.removeprefix("-") == name else query.sort
    limit, after, wanted = query.limit, _after(query.cursor, sort), _filter(query, kind)
    if wanted.stuck is not None:
        found = await call.context.stuck.page(kind.saga, wanted, sort, limit + 1, after)
    else:
        async with call.context.database.read() as connection:
            found = await instances.page(connection, kind.pair, kind.saga.name, wanted, sort, limit + 1, after)
    last = found[limit - 1] if len(found) > limit else None
    cursor = pagination.encode(sort, instances.sort_value(sort, last), last.id) if last else None
    body = {"items": [kind.view(instance) for instance in found[:limit]], "nextCursor": cursor}
    return Response(dump(body), headers=pagination.next_link(call.request, cursor), media_type=JSON)


def _after(cursor: str | None, sort: str) -> tuple[datetime | str, int] | None:
    if cursor is None:
        return None
    return pagination.decode(sort, cursor, str) if sort.endswith(NAME) else pagination.decode(sort, cursor, datetime)


def _filter(query: InstanceQuery, kind: InstanceKind) -> InstanceFilter:
    for state in query.state:
        if state not in kind.states:
            known = ", ".join(sorted(kind.states))
            raise bad_parameter("state", f"{state[:60]!r} is not one of {known}.")
    return InstanceFilter(
        states=tuple(dict.fromkeys(query.state)),
        created_by=query.created_by,
        created_after=query.created_after,
        created_before=query.created_before,
        prefix=query.q,
        stuck=query.stuck,
    )
