"""Is what `create_app` gives to an ASGI server a node, from the start of its lifespan to the end?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

import orchestrix
from app import main
from orchestrix import create_app, server
from orchestrix.api.guards.entrance import Entrance
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.config.settings import ApiSettings, Settings
from orchestrix.errors import ConfigError, SchemaMismatch
from orchestrix.node import Node
from tests.support import eventually

from .answers import BODY, problem


@pytest.fixture
async def settings(upgraded: Path, tmp_path: Path) -> AsyncIterator[Settings]:
    """A database with the schema, the embedded broker, and the service's own resource."""
    copy = tmp_path / "test.db"
    copy.write_bytes(upgraded.read_bytes())
    broker = EmbeddedBroker()
    await broker.start()
    yield Settings(database_url=f"sqlite+aiosqlite:///{copy}", broker_url=broker.url, resources=("app.apps",))
    await broker.stop()


@asynccontextmanager
async def client(app: FastAPI, url: str = "http://localhost") -> AsyncIterator[httpx.AsyncClient]:
    """Asks `app`, whoever starts it."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url) as found:
        yield found


@asynccontextmanager
async def started(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Asks `app`, which is started and stopped as an ASGI server does it."""
    async with app.router.lifespan_context(app), client(app) as found:
        yield found


async def test_it_serves_from_its_start_to_its_end_and_again(settings: Settings) -> None:
    app = create_app(settings)
    async with started(app) as asked:

        async def ready() -> bool:
            return (await asked.get("/health/ready")).status_code == 200

        await eventually(ready, deadline=15)
        answer = await asked.post("/apps", json=BODY)
        assert (answer.status_code, answer.headers["location"]) == (200, "/apps/1")

        async def all_is_well() -> bool:
            return bool((await asked.get("/health")).json()["status"] == "healthy")

        await eventually(all_is_well, deadline=15)
        parts = [check["component"] for check in (await asked.get("/health")).json()["checks"]]
        assert {"Coordinator", "Database", "Broker", "Topology"} <= set(parts)
    async with client(app) as asked:
        answer = await asked.get("/apps/1")
        assert answer.status_code == 503
        assert "must run its lifespan" in answer.json()["detail"]
    async with started(app) as asked:
        assert (await asked.get("/apps/1")).json()["appName"] == "billing"


async def test_routes_of_ones_own_come_first(settings: Settings) -> None:
    app = create_app(settings, roles=["api"])

    @app.get("/greeting")
    async def greet() -> dict[str, str]:
        return {"hello": "you"}

    async with started(app) as asked:
        assert (await asked.get("/greeting")).json() == {"hello": "you"}
        problem(await asked.get("/nowhere"), 404, "not_found")
        assert "/apps" in (await asked.get("/openapi.json")).json()["paths"]
    assert "/apps" in app.openapi()["paths"]


async def test_it_is_draining_before_its_parts_end(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    stop = server._stop

    async def watched(node: Any, *others: Any) -> None:
        seen.append(node.health.stopping)
        await stop(node, *others)

    monkeypatch.setattr(server, "_stop", watched)
    async with started(create_app(settings, roles=["api"])):
        pass
    assert seen == [True]


async def test_a_wrong_schema_stops_the_start(settings: Settings, sqlite_url: str) -> None:
    app = create_app(settings.model_copy(update={"database_url": sqlite_url + "x"}))
    with pytest.raises(SchemaMismatch, match="orchestrix db upgrade"):
        async with started(app):
            pass


async def test_a_wrong_schema_that_is_seen_later_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    database_is_back = asyncio.Event()

    async def begin(_: Node) -> None:
        await database_is_back.wait()
        raise SchemaMismatch("run `orchestrix db upgrade`")

    monkeypatch.setattr(server, "BEGIN_S", 0.0)
    monkeypatch.setattr(Node, "begin", begin)
    async with started(create_app(settings)) as asked:
        assert (await asked.get("/health/live")).status_code == 200
        assert "orchestrix db upgrade" not in (await asked.get("/health")).text
        database_is_back.set()

        async def told() -> bool:
            return "orchestrix db upgrade" in (await asked.get("/health")).text

        await eventually(told, deadline=15)
        assert (await asked.get("/health/ready")).status_code == 503


@pytest.mark.parametrize(
    ("change", "roles", "said"),
    [
        ({"database_url": None}, server.ROLES, "no database given"),
        ({"broker_url": None}, server.ROLES, "no broker given"),
        (
            {"database_url": None},
            server.ROLES,
            "set ORCHESTRIX_DATABASE_URL, or database_url in orchestrix.toml$",
        ),
        ({"broker_url": "embedded"}, server.ROLES, "the embedded broker runs only inside `orchestrix dev`"),
        ({"resources": ("no.such.module",)}, server.ROLES, "no.such.module"),
        ({}, ["api", "worker"], "unknown role 'worker'"),
        ({}, ["orchestrator"], "needs the role api"),
    ],
)
async def test_wrong_settings_are_refused_at_once(
    settings: Settings, change: dict[str, Any], roles: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        create_app(settings.model_copy(update=change), roles=roles)


async def test_without_settings_those_of_the_process_count(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRIX_DATABASE_URL", "mongodb://x")
    with pytest.raises(ConfigError, match="ORCHESTRIX_DATABASE_URL"):
        main.create_app()
    monkeypatch.setenv("ORCHESTRIX_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("ORCHESTRIX_BROKER_URL", str(settings.broker_url))
    monkeypatch.setenv("ORCHESTRIX_RESOURCES", "app.apps")
    async with started(main.create_app()) as asked:
        assert (await asked.get("/apps")).json()["items"] == []


@pytest.mark.parametrize("kind", [str, Path])
async def test_the_path_of_a_file_will_do(settings: Settings, tmp_path: Path, kind: type[Any]) -> None:
    file = tmp_path / "etc" / "service.toml"
    file.parent.mkdir()
    file.write_text(
        f'database_url = "{settings.database_url}"\nbroker_url = "{settings.broker_url}"\nresources = ["own_api"]\n'
    )
    (file.parent / "own_api.py").write_text("from app.apps import APPS\n")  # its names count from its folder
    async with started(create_app(kind(file))) as asked:
        assert (await asked.get("/apps")).json()["items"] == []
    with pytest.raises(ConfigError, match=r"nothing\.toml cannot be read .*create_app must point to"):
        create_app(kind(tmp_path / "nothing.toml"))


@pytest.mark.parametrize(
    ("listens", "inside"),
    [
        (("127.0.0.1", 80), True),
        (("::1", 80), True),
        (("localhost", 80), True),
        (("/run/api.sock", None), True),
        (("", None), True),
        (None, True),
        (("192.0.2.7", 80), False),
        (("0.0.0.0", 80), False),
        (("api.example.org", 80), False),
        (("api", None), False),
        (("localhost.example.org", 80), False),
        (("a/b", 80), False),
    ],
)
async def test_a_name_counts_as_here_only_where_it_is(listens: Any, inside: bool) -> None:
    passed = []

    async def inner(*_: object) -> None:
        passed.append(True)

    async def send(_: object) -> None:
        return

    entrance = Entrance(only_here=True)
    entrance.inner = inner
    await entrance({"type": "http", "server": listens, "method": "GET", "headers": []}, send, send)  # type: ignore[arg-type]
    assert bool(passed) is inside


async def test_without_tokens_nobody_is_let_in_from_outside(settings: Settings) -> None:
    outside = "http://192.0.2.7"  # what the server listens on, as the transport tells it
    app = create_app(settings, roles=["api"])
    async with app.router.lifespan_context(app), client(app, outside) as asked:
        answer = await asked.get("/apps", headers={"Host": "localhost"})
        assert "ORCHESTRIX_API__TOKENS" in answer.json()["detail"]
        assert answer.status_code == 421
    known = settings.model_copy(update={"api": ApiSettings(tokens={"ada": SecretStr("s" * 32)})})
    app = create_app(known, roles=["api"])
    async with app.router.lifespan_context(app), client(app, outside) as asked:
        answer = await asked.get("/apps", headers={"Authorization": f"Bearer {'s' * 32}"})
        assert answer.status_code == 200


def test_it_is_a_public_name() -> None:
    assert orchestrix.create_app is server.create_app
    assert "create_app" in orchestrix.__all__
