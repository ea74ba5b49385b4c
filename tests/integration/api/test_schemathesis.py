"""Does the API do what its OpenAPI document says, whatever a client makes of that?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import positive_data_acceptance

from orchestrix import clock
from orchestrix.api.guards import auth
from orchestrix.api.guards.connections import ConnectionLimits, Server, config
from orchestrix.api.patterns import DURATION
from orchestrix.bootstrap.listening_socket import listening
from orchestrix.engine.control import ActionResult
from orchestrix.persistence.registry import groups

from .world import World

CONFIG: Final[dict[str, Any]] = {
    "generation": {"allow-x00": False, "with-security-parameters": False},
    "checks": {
        # An id that nobody has is 404, a state in which it is not allowed 409, a moved version 412.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "303", "304", "404", "409", "412"]},
    },
}
MODES: Final = tuple(schemathesis.GenerationMode)
STREAMS: Final = ("/events", "/logs")
KEY: Final = "Idempotency-Key"
SECRET: Final = "the-secret-of-ada"
Operation = APIOperation[Any, Any, Any, Any]

ACROSS: Final = ("POST /schedules", "PATCH /schedules/{schedule}", "POST /schedules/{schedule}/backfill")
"""Here fields have to fit together: a jitter is shorter than its interval, an end comes after its beginning."""

schemathesis.openapi.format("cron", st.sampled_from(["30 2 * * MON-FRI", "@daily", "*/5 * * * *"]))
schemathesis.openapi.format("time-zone", st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]))
schemathesis.openapi.format(
    "executor-address",
    st.tuples(st.sampled_from(["http", "HTTPS"]), st.ip_addresses(network="10.0.0.0/8"), st.integers(1, 65535)).map(
        lambda parts: "{}://{}:{}".format(*parts)
    ),
)
schemathesis.openapi.format("executor-group", st.sampled_from(["billing", "shop"]))
schemathesis.openapi.format("saga-state", st.sampled_from(["COMPLETED", "FAILED"]))
schemathesis.openapi.format(
    "date-time",
    st.datetimes(datetime(2001, 1, 1), datetime(2199, 1, 1)).map(lambda at: f"{at.isoformat(timespec='seconds')}Z"),
)


@schemathesis.hook
def filter_query(context: schemathesis.HookContext, query: dict[str, Any] | None) -> bool:
    """A cursor is what the API has given out, and `saga` says whose `sagaId` it is. An empty list would not be sent."""
    given = query or {}
    alone = "/jobs" in str(context.operation) and "saga" in given and "sagaId" not in given
    return not alone and "cursor" not in given and [] not in given.values()


@schemathesis.hook
def map_query(_: schemathesis.HookContext, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is waited for comes in none of these tests: a wait is of milliseconds."""
    wait = str((query or {}).get("wait", ""))
    return {**(query or {}), "wait": f"{wait.rstrip('ms')[:2]}ms"} if re.fullmatch(DURATION, wait) else query


def operations(world: World, url: str) -> Iterator[Operation]:
    """Those that have an end, and that the token of the test opens: reports of executors have their own."""
    settings = SchemathesisConfig.from_dict({"base-url": url, **CONFIG})
    schema = schemathesis.openapi.from_dict(world.app.openapi(), config=settings)
    for found in schema.get_all_operations():
        operation = found.ok()  # type: ignore[union-attr]  # ours is no invalid schema
        if not operation.path.endswith(STREAMS) and "/attempts/" not in operation.path:
            yield operation


async def filled(world: World) -> None:
    """Some of everything."""
    instance = await world.started()
    await world.started("o-1", "order")
    world.control.answer = ActionResult(instance)
    for app in ("billing", "shop"):
        await world.database.run(lambda tx, app=app: groups.set_addresses(tx, app, None, tx.now()))  # type: ignore[misc]


@asynccontextmanager
async def served(world: World) -> AsyncIterator[str]:
    """Where the API listens, which asks for a token."""
    limits = ConnectionLimits(head=10.0, body=10.0, keep_alive=60.0, connections=100)
    server = Server(config(world.built(ada=SECRET), limits, stop=1))
    socket = listening("127.0.0.1", [0])
    serving = asyncio.create_task(server.serve(sockets=[socket]))
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def test_the_api_is_as_its_document_says(
    world: World, monkeypatch: pytest.MonkeyPatch, scale: Callable[[int, int], int]
) -> None:
    monkeypatch.setattr(auth, "GUESSES", 1_000_000)  # each operation is tried with a wrong token
    await filled(world)
    found: dict[str, str] = {}
    async with served(world) as url:
        with requests.Session() as session:
            for operation in operations(world, url):
                if operation.path.startswith("/sagas/{name}") and not scale(0, 1):
                    continue  # the same handlers as below /apps
                for mode in MODES:
                    wrong = await asyncio.to_thread(check, operation, mode, scale(2, 100), session)
                    found |= {f"{operation.label} {mode.value}": wrong} if wrong else {}
    assert not found, "\n\n".join(f"{where}\n{what}" for where, what in found.items())


def check(operation: Operation, mode: schemathesis.GenerationMode, examples: int, session: requests.Session) -> str:
    """What is wrong with the answers to so many requests, if anything."""

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case[Any]) -> None:
        excluded: list[Any] | None = [positive_data_acceptance] if operation.label in ACROSS else None
        headers = {"Authorization": f"Bearer {SECRET}"}
        if KEY in (case.headers or {}) and mode is schemathesis.GenerationMode.POSITIVE:
            headers[KEY] = clock.uuid7()  # each is used once
        case.call_and_validate(session=session, headers=headers, excluded_checks=excluded)

    try:
        ask()
    except Unsatisfiable:
        return ""  # nothing can be wrong with a request that takes nothing
    except BaseExceptionGroup as wrong:
        return "".join(str(one) for one in wrong.exceptions) + str(wrong)[:2000]
    except Exception as wrong:
        return f"{type(wrong).__name__}: {wrong}"[:2000]
    return ""
