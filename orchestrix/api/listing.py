"""Instance list: which instances a page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import Response

from orchestrix.api import cursors
from orchestrix.api.instance_resource import InstanceResource
from orchestrix.api.names import MAX_NAME_LENGTH
from orchestrix.api.parameters import MAX_LIMIT, Parameter, Query
from orchestrix.api.problems import bad_parameter
from orchestrix.api.routes import Call
from orchestrix.api.start import JSON
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.instances import InstanceFilter
from orchestrix.saga.messages import dump

DEFAULT_LIMIT: Final = 50
DEFAULT_SORT: Final = "-createdAt"
_NAME: Final = {"type": "string", "maxLength": MAX_NAME_LENGTH}
_FLAG: Final = {"type": "boolean"}
_TIME: Final = {"type": "string", "format": "date-time"}

LIMIT: Final = Parameter("limit", "How many items a page has.", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT})
CURSOR: Final = Parameter("cursor", "`nextCursor` of the page before.")
KEY: Final = "key"
"""What names are called in lists of sagas of any name."""
NAME: Final = "appName"
"""What the order by names is called in cursors, whatever the names are called."""
WAITING: Final = ("wait", "sinceVersion")
"""What was waited for is there: the next page comes without a wait."""


def parameters(name: str) -> tuple[Parameter, ...]:
    """What a list takes whose names are called `name`."""
    fields = [f"{sign}{field}" for field in ("createdAt", "updatedAt", name) for sign in ("", "-")]
    return (
        Parameter("state", "Only these states. May stand several times.", many=True),
        Parameter("createdBy", "Only what this person started.", _NAME),
        Parameter("createdAfter", "Only what was started after this time.", _TIME),
        Parameter("createdBefore", "Only what was started before this time.", _TIME),
        Parameter("q", f"Only where {name} begins so. Upper and lower case differ.", _NAME),
        Parameter(
            "stuck", "Only what waits for a person, the broker or workers that are not there, or is overdue.", _FLAG
        ),
        Parameter("sort", "The order; - descends.", {"type": "string", "enum": fields, "default": DEFAULT_SORT}),
        LIMIT,
        CURSOR,
    )


async def list_instances(call: Call, kind: InstanceResource, name: str) -> Response:
    """One page; the client calls the names `name`. Raises `Problem` 400 for a wrong parameter."""
    query = call.query
    sort = _sort(query, name)
    limit = query.limit(DEFAULT_LIMIT)
    after = _after(query, sort)
    wanted = _filter(query, kind)
    if wanted.stuck is not None:
        found = await call.context.stuck.page(kind.saga, wanted, sort, limit + 1, after)
    else:
        async with call.context.database.read() as connection:
            found = await instances.page(connection, kind.pair, kind.saga.name, wanted, sort, limit + 1, after)
    last = found[limit - 1] if len(found) > limit else None
    cursor = cursors.encode(sort, instances.sort_value(sort, last), last.id) if last else None
    return page_response(call, [kind.view(instance) for instance in found[:limit]], cursor)


def page_response(call: Call, items: Sequence[Mapping[str, Any]], cursor: str | None) -> Response:
    """`{items, nextCursor}`, with a `Link` to the next page (RFC 8288)."""
    headers = {"Link": f'<{_next(call, cursor)}>; rel="next"'} if cursor else None
    return Response(dump({"items": items, "nextCursor": cursor}), headers=headers, media_type=JSON)


def _next(call: Call, cursor: str) -> str:
    # Not from `request.url`: that trusts the Host header, which can be wrong.
    query = parse_qsl(call.request.scope["query_string"].decode("ascii"), keep_blank_values=True)
    kept = [(name, value) for name, value in query if name not in ("cursor", *WAITING)]
    return f"{quote(call.request.scope['path'])}?{urlencode([*kept, ('cursor', cursor)])}"


def _sort(query: Query, name: str) -> str:
    given = query.text("sort") or DEFAULT_SORT
    sign, field = ("-", given[1:]) if given.startswith("-") else ("", given)
    known = {"createdAt": "createdAt", "updatedAt": "updatedAt", name: NAME}
    if name == KEY:
        known[NAME] = NAME  # as apps are sorted, which are sagas too
    if field not in known:
        raise bad_parameter("sort", f"must be one of {', '.join(known)}, with - before it to descend.")
    return sign + known[field]


def _after(query: Query, sort: str) -> tuple[datetime | str, int] | None:
    cursor = query.text("cursor")
    if cursor is None:
        return None
    return cursors.decode(sort, cursor, str) if sort.endswith(NAME) else cursors.decode(sort, cursor, datetime)


def _filter(query: Query, kind: InstanceResource) -> InstanceFilter:
    return InstanceFilter(
        states=query.choices("state", kind.states),
        created_by=query.text("createdBy"),
        created_after=query.moment("createdAfter"),
        created_before=query.moment("createdBefore"),
        prefix=query.text("q", blank=True),
        stuck=query.flag("stuck"),
    )
