"""May pages of named sites call the API, are long answers compressed, and where does `/` lead a browser?"""

from __future__ import annotations

import httpx
import pytest

from orchestrix.api.guards.origin_guard import OriginGuard
from orchestrix.api.openapi.page import ENTRANCE

from .answers import BODY, problem
from .world import Exchange, World

SITE = "https://ui.example"
GUARD = OriginGuard(check_host=True, origins=(SITE,))
PREFLIGHT = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "authorization,if-match"}


def asking(world: World, gzip: bool = False) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(world.built(GUARD, gzip=gzip))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def test_a_named_site_may_ask_and_read_the_answer(world: World) -> None:
    async with asking(world) as client:
        allowed = await client.options("/apps/1", headers={"Origin": SITE, **PREFLIGHT})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, SITE)
        assert "PATCH" in allowed.headers["access-control-allow-methods"]
        assert allowed.headers["access-control-allow-headers"] == "authorization,if-match"
        headers = {"Origin": SITE, "Sec-Fetch-Site": "cross-site"}
        answer = await client.post("/apps", json=BODY, headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, SITE)
        shown = answer.headers["access-control-expose-headers"].split(", ")
        assert {"ETag", "Location", "Link", "Retry-After", "X-Correlation-ID", "Idempotent-Replayed"} <= set(shown)
        assert "access-control-allow-credentials" not in answer.headers
        refused = await client.post("/apps", json=BODY, headers=headers)
        problem(refused, 409, "already_exists")
        assert refused.headers["access-control-allow-origin"] == SITE


@pytest.mark.parametrize("origin", ["https://evil.example", "http://ui.example", "https://ui.example.evil", "null"])
async def test_other_sites_are_refused_with_a_problem(world: World, origin: str) -> None:
    async with asking(world) as client:
        for answer, status, code in (
            (await client.options("/apps/1", headers={"Origin": origin, **PREFLIGHT}), 405, "method_not_allowed"),
            (await client.post("/apps", json=BODY, headers={"Origin": origin}), 403, "foreign_origin"),
        ):
            problem(answer, status, code)
            assert "access-control-allow-origin" not in answer.headers


async def test_without_named_sites_nothing_is_told(world: World) -> None:
    answer = await world.client.get("/apps", headers={"Origin": SITE})
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_long_answers_are_compressed_if_that_is_wanted(world: World) -> None:
    for number in range(5):
        await world.started(f"app-{number}")
    async with asking(world, gzip=True) as client:
        page = await client.get("/apps", headers={"Accept-Encoding": "gzip"})
        assert page.headers["content-encoding"] == "gzip"
        assert len(page.json()["items"]) == 5
        assert "content-encoding" not in (await client.get("/apps", headers={"Accept-Encoding": "identity"})).headers
        assert "content-encoding" not in (await client.get("/apps/1", headers={"Accept-Encoding": "gzip"})).headers
        head = await client.head("/apps", headers={"Accept-Encoding": "gzip"})
        assert (head.headers["content-encoding"], head.content) == ("gzip", b"")
    plain = await world.client.get("/apps", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == page.json()


async def test_a_stream_is_never_compressed(world: World) -> None:
    app = await world.completed()
    headers = {"Accept-Encoding": "gzip", "Host": "localhost"}
    async with Exchange(world.built(GUARD, gzip=True), f"/apps/{app.id}/events", headers=headers) as exchange:
        await exchange.done()
    assert "content-encoding" not in exchange.headers
    assert [event["event"] for event in exchange.events] == ["state"] * 4


async def test_the_root_leads_a_browser_to_the_documentation(world: World) -> None:
    async with asking(world) as client:
        page = await client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert (page.status_code, page.headers["location"], page.headers["vary"]) == (303, "/docs", "Accept")
        told = await client.get("/", headers={"Accept": "*/*"})
        assert (told.status_code, told.json()) == (200, ENTRANCE)
        for path in ENTRANCE.values():
            assert (await client.get(path)).status_code == 200
    closed = httpx.ASGITransport(world.built(ada="the-secret-of-ada"))
    async with httpx.AsyncClient(transport=closed, base_url="http://localhost") as client:
        assert (await client.get("/")).json() == ENTRANCE
