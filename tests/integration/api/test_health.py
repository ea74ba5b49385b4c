"""Do the health pages tell the truth, and can the description be read?"""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from orchestrix.api.guards.auth import GUESSES
from orchestrix.api.health.models import HealthBody
from orchestrix.api.openapi.page import STATIC
from orchestrix.api.problems import CODES
from orchestrix.errors import Unavailable

from .answers import problem
from .world import World


async def health(world: World, path: str = "") -> tuple[int, dict[str, Any]]:
    answer = await world.client.get(f"/health{path}")
    HealthBody.model_validate(answer.json())
    assert answer.headers["cache-control"] == "no-store"
    body: dict[str, Any] = answer.json()
    return answer.status_code, body


@pytest.mark.req("S1-52")
async def test_the_shape_of_the_shard_coordinator(world: World) -> None:
    world.health.watch("Coordinator", lambda: None)
    assert await health(world) == (
        200,
        {"status": "healthy", "checks": [{"component": "Coordinator", "isHealthy": True}]},
    )


async def test_a_component_that_is_not_well_makes_503_with_its_reason(world: World) -> None:
    world.health.watch("Database", lambda: None)
    world.health.watch("Broker", lambda: "not connected")
    for path, status in (("", "unhealthy"), ("/ready", "not ready")):
        assert await health(world, path) == (
            503,
            {
                "status": status,
                "checks": [
                    {"component": "Database", "isHealthy": True},
                    {"component": "Broker", "isHealthy": False, "reason": "not connected"},
                ],
            },
        )


async def test_a_node_that_keeps_what_it_cannot_send_is_ready_without_a_broker(world: World) -> None:
    world.health.needs = frozenset({"Database"})
    well, away = {"component": "Database", "isHealthy": True}, {"component": "Broker", "isHealthy": False}
    world.health.watch("Broker", lambda: "not connected")
    world.health.watch("Database", lambda: None)
    assert await health(world, "/ready") == (200, {"status": "ready", "checks": [well]})
    assert await health(world) == (503, {"status": "unhealthy", "checks": [{**away, "reason": "not connected"}, well]})
    world.health.watch("Database", lambda: "read-only")
    assert (await health(world, "/ready"))[0] == 503


async def test_the_coordinator_is_told_first(world: World) -> None:
    for name in ("Database", "Coordinator", "Broker"):
        world.health.watch(name, lambda: None)
    for path in ("", "/ready"):
        found = [check["component"] for check in (await health(world, path))[1]["checks"]]
        assert found == ["Coordinator", "Database", "Broker"]


@pytest.mark.parametrize(
    ("headers", "told"),
    [({}, False), ({"Authorization": "Bearer wrong"}, False), ({"Authorization": "Bearer s3cret"}, True)],
)
@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_where_tokens_are_set_reasons_are_for_those_who_have_one(
    world: World, path: str, headers: dict[str, str], told: bool
) -> None:
    world.health.watch("Database", lambda: "no answer from db-1.internal")
    world.health.stopping = True
    transport = httpx.ASGITransport(world.built(ada="s3cret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        answer = await client.get(path, headers=headers)
    assert answer.status_code == 503
    assert ("reason" in answer.text) is told
    assert {check["component"] for check in answer.json()["checks"]} >= {"Database"}


async def test_who_guesses_at_health_has_no_guesses_left_anywhere(world: World) -> None:
    transport = httpx.ASGITransport(world.built(ada="s3cret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        for number in range(GUESSES):
            path = ("/health", "/health/ready")[number % 2]
            assert (await client.get(path, headers={"Authorization": f"Bearer {number}"})).status_code == 200
        problem(await client.get("/apps", headers={"Authorization": "Bearer s3cret"}), 429, "too_many_requests")


async def test_what_is_not_vital_is_shown_and_keeps_no_work_away(world: World) -> None:
    world.health.watch("Dead letters", lambda: "cannot store 1 dead letter", critical=False)
    shown = [{"component": "Dead letters", "isHealthy": True, "reason": "cannot store 1 dead letter"}]
    assert await health(world) == (200, {"status": "healthy", "checks": shown})
    assert await health(world, "/ready") == (200, {"status": "ready", "checks": shown})


async def test_live_looks_at_nothing(world: World) -> None:
    def probe() -> str:
        raise AssertionError("asked")

    world.health.watch("Broker", probe)
    world.health.started = False
    assert await health(world, "/live") == (200, {"status": "alive", "checks": []})


async def test_ready_and_startup_follow_the_life_of_the_process(world: World) -> None:
    async def codes() -> tuple[int, int]:
        return (await health(world, "/ready"))[0], (await health(world, "/startup"))[0]

    world.health.started = False
    assert await codes() == (503, 503)
    world.health.started = True
    assert await codes() == (200, 200)
    world.health.stopping = True
    assert await codes() == (503, 200)
    assert (await health(world, "/ready"))[1]["checks"][0]["reason"] == "the process is stopping"


@pytest.mark.parametrize(
    ("started", "stopping", "says"),
    [
        (False, False, "This node is starting, and takes requests once its database has answered; nothing"),
        (True, True, "This node is stopping; nothing"),
        (False, True, "This node is stopping; nothing"),
        (True, False, "The database is unavailable or overloaded; nothing"),
    ],
)
async def test_a_node_that_takes_nothing_says_whether_it_only_starts_or_stops(
    world: World, started: bool, stopping: bool, says: str
) -> None:
    world.health.started, world.health.stopping = started, stopping
    world.starter.answer = Unavailable("this node accepts no requests")
    answer = await world.client.post("/apps", json={"appName": "shop", "createdBy": "ada"})
    found = problem(answer, 503, "unavailable")
    assert found["detail"] == f"{says} was changed. Retry in 1 s."
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["", "/live", "/ready", "/startup"])
async def test_probes_may_add_parameters_and_use_head(world: World, path: str) -> None:
    assert (await world.client.get(f"/health{path}?now=1")).status_code == 200
    assert (await world.client.head(f"/health{path}")).status_code == 200


# The description


async def document(world: World) -> dict[str, Any]:
    answer = await world.client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, Any] = answer.json()
    return body


def operations(api: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, one) for path, methods in api["paths"].items() for method, one in methods.items()]


async def test_every_operation_has_a_name_and_its_problems(world: World) -> None:
    api = await document(world)
    found = operations(api)
    names = [one["operationId"] for _, _, one in found]
    assert len(set(names)) == len(names) == 81
    assert {"createApp", "listApps", "getApp", "followApp", "startSaga", "getReady", "listCatalogue"} <= set(names)
    assert {"retryApp", "skipSaga", "setDeadlineApp", "cancelDeadlineSaga", "whyApp", "listDeadlines"} <= set(names)
    for path, _, one in found:
        assert one["summary"]
        for status, answer in one["responses"].items():
            if int(status) >= 400 and not path.startswith("/health"):
                assert list(answer["content"]) == ["application/problem+json"], (path, status)
                assert answer["content"]["application/problem+json"]["examples"]


async def test_every_operation_but_probes_asks_for_a_token(world: World) -> None:
    api = await document(world)
    (scheme,) = api["components"]["securitySchemes"]
    assert api["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
    for path, _, one in operations(api):
        public = path.startswith("/health") or path == "/metrics"
        assert one["security"] == ([] if public else [{scheme: []}])
        assert ("401" in one["responses"]) != public


async def test_no_shape_of_fastapis_own_errors_is_shown(world: World) -> None:
    api = await document(world)
    assert not {"HTTPValidationError", "ValidationError"} & set(api["components"]["schemas"])


async def test_every_reference_leads_somewhere(world: World) -> None:
    api = await document(world)
    references = re.findall(r'"\$ref": ?"#/components/schemas/(\w+)"', (await world.client.get("/openapi.json")).text)
    assert references
    assert set(references) <= set(api["components"]["schemas"])


async def test_path_parameters_are_all_described(world: World) -> None:
    for path, _, one in operations(await document(world)):
        described = {parameter["name"] for parameter in one.get("parameters", []) if parameter["in"] == "path"}
        assert described == set(re.findall(r"{(\w+)}", path))


async def test_the_page_needs_no_other_server(world: World) -> None:
    page = await world.client.get("/docs")
    policy = page.headers["content-security-policy"]
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for link in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert link.startswith("/")
        assert (await world.client.get(link)).status_code == 200
    for file in STATIC.iterdir():
        assert "://" not in file.read_text("utf-8")


async def test_the_page_explains_every_problem(world: World) -> None:
    page = (await world.client.get("/docs")).text
    assert all(f'id="{code}"' in page for code in CODES)
