"""Shard routes: the services of shards, and one of them with its members and its generations."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from orchestrix.api import pagination
from orchestrix.api.answers import respond
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, as_sentence, not_found
from orchestrix.api.query import Paging
from orchestrix.api.shards.models import GenerationQuery, ServiceBody, ServiceItem, ServicePage
from orchestrix.errors import NotFound
from orchestrix.persistence.shards import generations, overview, service_store
from orchestrix.saga.validation.names import normal

ORDER: Final = "name of shard service"
HISTORY_ORDER: Final = "number of generation"


def _refusal(error: Exception, _: Any) -> Problem | None:
    return Problem("not_found", as_sentence(error)) if isinstance(error, NotFound) else None


operations = Operations("shards", refusal=_refusal)


def service_of(call: Call) -> str:
    """The service in the path. Raises `Problem` 404 for what no service can be called."""
    text = call.path("service")
    try:
        return normal(text)
    except ValueError:
        raise not_found(f"shard service {text[:100]!r}") from None


@operations.get("/shards")
async def list_shards(call: Call, query: Paging) -> ServicePage:
    """List the services of shards.

    By name, also those that have no members any more. Read from the database: every node gives the same answer.
    """
    after = pagination.decode(ORDER, query.cursor, str)[0] if query.cursor else None
    async with call.context.database.read() as connection:
        found = await overview.page(connection, after, query.limit + 1)
    shown = found[: query.limit]
    cursor = pagination.encode(ORDER, shown[-1].name, 0) if len(found) > query.limit else None
    return ServicePage(items=[ServiceItem.made(one) for one in shown], next_cursor=cursor)


@operations.get("/shards/{service:path}", of=service_of)
async def get_shards(call: Call, service: str, query: GenerationQuery) -> ServiceBody | Response:
    """Show a service of shards.

    Its members with what each has, what keeps shards from those whose share they are, and its generations, the newest
    first; those that were superseded are kept for 7 days. Read from the database: every node gives the same answer.
    """
    before = pagination.decode(HISTORY_ORDER, query.cursor, int)[0] if query.cursor else None
    async with call.context.database.read() as connection:
        found = await service_store.read(connection, service)
        if found is None:
            raise NotFound(
                f"no service of shards is called {service[:100]!r}: `orchestrix shards show` lists those that are"
            )
        history = await generations.history(connection, service, query.limit + 1, before)
        now = connection.now()
    shown = history[: query.limit]
    cursor = pagination.encode(HISTORY_ORDER, shown[-1].number, 0) if len(history) > query.limit else None
    answer = ServiceBody.made(found.state, shown, call.context.shard_rules, now, cursor)
    return respond(answer, headers=pagination.next_link(call.request, cursor))
