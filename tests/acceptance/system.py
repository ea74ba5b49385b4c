"""How does a test run a whole system of processes and talk to it as a client does?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests import invariants
from tests.processes import Process, Processes
from tests.servers import templates
from tests.support import NO_TLS, eventually, free_port

EVERY_DATABASE: Final = pytest.mark.parametrize("system", ["postgres", "mariadb", "sqlite"], indirect=True)
"""The `system` of a test stands on each of them in turn."""
AGAIN: Final = 35.0
"""Seconds after the return of a broker in which everything ends: a step that nobody sent again would wait for 60."""


class Client:
    """An HTTP client of one node."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.AsyncClient(
            base_url=url, timeout=30, limits=httpx.Limits(max_connections=100), trust_env=False, verify=NO_TLS
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def create(self, name: str, **more: Any) -> httpx.Response:
        """`POST /apps` by `ada`."""
        return await self.http.post("/apps", json={"appName": name, "createdBy": "ada", **more})

    async def created(self, name: str) -> dict[str, Any]:
        """`create` that must succeed; the app."""
        answer = await self.create(name)
        assert answer.status_code == 200, answer.text
        app: dict[str, Any] = answer.json()
        return app

    async def app(self, app_id: int) -> dict[str, Any]:
        """`GET /apps/{id}`."""
        answer = await self.http.get(f"/apps/{app_id}")
        assert answer.status_code == 200, answer.text
        app: dict[str, Any] = answer.json()
        return app

    async def history(self, app_id: int) -> list[dict[str, Any]]:
        """`GET /apps/{id}/history`, the rows."""
        answer = await self.http.get(f"/apps/{app_id}/history")
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    async def completed(self, app_id: int, *, deadline: float = 30.0) -> dict[str, Any]:
        """Waits until the app is COMPLETED."""

        async def done() -> dict[str, Any] | None:
            app = await self.app(app_id)
            assert app["state"] != "FAILED", app
            return app if app["state"] == "COMPLETED" else None

        app: dict[str, Any] | None = await eventually(
            done, deadline=deadline, every=0.05, message=f"app {app_id} completes"
        )
        assert app is not None
        return app


class System:
    """Nodes and workers as processes on one database and one broker."""

    def __init__(self, processes: Processes, folder: Path, database_url: str, broker_url: str) -> None:
        self.processes = processes
        self.folder = folder
        self.database_url = database_url
        self.broker_url = broker_url
        self.repos = folder / "repos"

    def env(self, **more: str) -> dict[str, str]:
        """The settings of every process."""
        return {
            "ORCHESTRIX_DATABASE_URL": self.database_url,
            "ORCHESTRIX_BROKER_URL": self.broker_url,
            "ORCHESTRIX_GIT__ROOT": str(self.repos),
            **more,
        }

    def upgrade(self) -> None:
        """What `orchestrix db upgrade` does."""
        templates.upgraded(self.database_url)

    def node(self, *, port: int | None = None, **env: str) -> tuple[Process, str]:
        """Starts `orchestrix serve`; the process and its address."""
        port = port or free_port()
        return self.processes.spawn("serve", "--port", str(port), env=self.env(**env)), f"http://127.0.0.1:{port}"

    def worker(self, *arguments: str, **env: str) -> Process:
        """Starts `orchestrix worker`."""
        return self.processes.spawn("worker", *arguments, env=self.env(**env))

    async def ready(self, url: str, *, deadline: float = 30.0) -> None:
        """Waits until the node at `url` is ready, and all its components are well."""
        async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:

            async def is_ready() -> bool:
                try:
                    for path in ("/health/ready", "/health"):  # the second only once the first is well
                        if (await http.get(f"{url}{path}")).status_code != 200:
                            return False
                except httpx.HTTPError:
                    return False
                return True

            await eventually(is_ready, deadline=deadline, every=0.05, message=f"{url} is ready")

    async def ledger(self) -> invariants.Ledger:
        """What the database holds now."""
        return await invariants.read(self.database_url)

    async def some_done(self, least: int) -> None:
        """Waits until `least` apps are completed, so that the rest is in the middle of it."""

        async def enough() -> bool:
            return sum(app.state == "COMPLETED" for app in (await self.ledger()).apps) >= least

        await eventually(enough, deadline=60, every=0.05, message=f"{least} apps are completed")

    async def all_ended(self, names: Iterable[str], *, deadline: float) -> invariants.Ledger:
        """Waits until every app of `names` is there and nothing is left to do."""
        wanted, looks = set(names), list[str]()
        began = asyncio.get_running_loop().time()

        async def ended() -> invariants.Ledger | None:
            ledger = await self.ledger()
            open_still = _open(ledger, wanted)
            looks.append(f"after {asyncio.get_running_loop().time() - began:.1f} s: {open_still}")
            return None if open_still else ledger

        try:
            ledger = await eventually(ended, deadline=deadline, every=0.25, message="every saga ends")
        except AssertionError as late:
            seen = "\n".join(looks[:: max(1, len(looks) // 5)] + looks[-1:])
            raise AssertionError(f"{late}; {len(looks)} looks, such as\n{seen}") from None
        assert ledger is not None
        return ledger


def _open(ledger: invariants.Ledger, wanted: set[str]) -> str:
    """What is not at its end, in a few words; empty if all is."""
    live = [app for app in ledger.apps if app.state not in ("COMPLETED", "FAILED")]
    missing = sorted(wanted - {app.name for app in ledger.apps})
    told = [f"{len(live)} live, such as {live[:2]}"] if live else []
    told += [f"{len(missing)} missing, such as {missing[:3]}"] if missing else []
    told += [f"{len(ledger.outbox)} in the outbox, such as {ledger.outbox[:3]}"] if ledger.outbox else []
    return "; ".join(told)


async def create_all(clients: list[Client], names: list[str], *, at_once: int = 50) -> list[str]:
    """Starts an app for each name, spread over the clients; the names that were answered with 200."""
    gate = asyncio.Semaphore(at_once)

    async def one(place: int, name: str) -> str | None:
        async with gate:
            try:
                answer = await clients[place % len(clients)].create(name)
            except httpx.HTTPError as error:
                print(f"{name} was not answered: {error!r}")
                return None
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        if answer.status_code != 200:
            print(f"{name} was answered with {answer.status_code}: {answer.text}")
            return None
        return name

    answers = await asyncio.gather(*(one(place, name) for place, name in enumerate(names)))
    return [name for name in answers if name is not None]


def body(**fields: Any) -> bytes:
    """A JSON body."""
    return json.dumps(fields).encode()
