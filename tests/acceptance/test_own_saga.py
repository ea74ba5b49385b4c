"""Does the README's saga of one's own run, from a folder that has nothing to do with the repository?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.readme import asked, page
from tests.documents import README, ROOT, block
from tests.processes import Process, Processes
from tests.support import NO_TLS, free_port

OWN = {"ORCHESTRIX_SAGAS": "orders", "ORCHESTRIX_WORKERS": "orders"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user's `orders.py` lies."""
    home = tmp_path / "elsewhere"
    home.mkdir()
    assert not home.is_relative_to(ROOT)
    (home / "orders.py").write_text(block(README, "python", "ORDER = Saga("))
    return home


def start(processes: Processes, folder: Path, env: Mapping[str, str] = OWN) -> tuple[Process, str]:
    """`dev` in that folder, and the address of its API."""
    dev = processes.spawn("dev", "--port", str(free_port()), cwd=folder, env=env)
    dev.wait_for_line_sync("^Ready in")
    return dev, json.loads((folder / ".orchestrix" / "dev.json").read_text())["apiUrl"]


@pytest.fixture
async def api(processes: Processes, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The API of a `dev` that knows the saga and its workers."""
    _, url = start(processes, folder)
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield client


def order(key: str, film: str = "Metropolis") -> dict[str, Any]:
    """The body of a start."""
    return {"key": key, "createdBy": "ada", "data": {"film": film}}


async def ended(api: httpx.AsyncClient, instance: Mapping[str, Any]) -> dict[str, Any]:
    """The instance once it has ended; each long-poll waits for the next change."""
    seen = dict(instance)
    while seen["state"] not in ("COMPLETED", "FAILED"):
        version = seen["version"]
        answer = await api.get(f"/sagas/order/{seen['id']}", params={"wait": "20s", "sinceVersion": version})
        seen = answer.json()
        assert seen["version"] > version, f"nothing moved within 20 s: {seen}"
    return seen


async def test_lines_of_the_readme(processes: Processes, folder: Path) -> None:
    run, post, get = page("ORCHESTRIX_SAGAS=")
    *settings, program, command = run.split()
    assert (program, command) == ("orchestrix", "dev")
    _, url = start(processes, folder, dict(one.split("=") for one in settings))
    started = await asked(post, url)
    assert started.status_code == 200, started.text
    assert started.json()["state"] == "ORDERED"
    seen = await asked(get, url)
    assert (seen.status_code, seen.json()["state"]) == (200, "COMPLETED")


async def test_own_saga_completes_with_its_data_and_history(api: httpx.AsyncClient) -> None:
    started = await api.post("/sagas/order", json=order("ticket-1"))
    assert started.status_code == 200, started.text
    seen = await ended(api, started.json())
    assert seen["state"] == "COMPLETED"
    assert seen["data"] == {"film": "Metropolis", "seat": f"row {seen['id']}"}
    rows = (await api.get(f"/sagas/order/{seen['id']}/history")).json()["items"]
    assert [(row["version"], row["fromState"], row["toState"], row["reason"]) for row in rows] == [
        (1, None, "ORDERED", "created"),
        (2, "ORDERED", "PAYING", "evt.reserved"),
        (3, "PAYING", "COMPLETED", "evt.paid"),
    ]


async def test_own_saga_that_fails_says_why(api: httpx.AsyncClient) -> None:
    started = await api.post("/sagas/order", json=order("ticket-1", film="sold out"))
    seen = await ended(api, started.json())
    assert seen["state"] == "FAILED"
    rows = (await api.get(f"/sagas/order/{seen['id']}/history")).json()["items"]
    assert "SoldOut: no seat is left" in rows[-1]["reason"]
    assert [row["toState"] for row in rows] == ["ORDERED", "FAILED"]


async def test_own_saga_checks_its_data_and_its_keys(api: httpx.AsyncClient) -> None:
    without_film = await api.post("/sagas/order", json={"key": "ticket-1", "createdBy": "ada", "data": {}})
    assert without_film.status_code == 422
    assert (await api.post("/sagas/order", json=order("ticket-1"))).status_code == 200
    assert (await api.post("/sagas/order", json=order("ticket-1"))).status_code == 409


async def test_apps_run_beside_it(api: httpx.AsyncClient, processes: Processes, folder: Path) -> None:
    for what in (("apps", "create", "billing"), ("sagas", "create", "order", "ticket-9", "--data", '{"film":"M"}')):
        created = await processes.run_async(*what, "--by", "ada", "--wait", "-o", "json", cwd=folder)
        assert created.returncode == 0, created.stderr
        assert json.loads(created.stdout)["state"] == "COMPLETED"


async def test_a_worker_elsewhere_does_the_work_of_a_dev_without_handlers(processes: Processes, folder: Path) -> None:
    sagas_alone = {"ORCHESTRIX_SAGAS": "orders"}
    _, url = start(processes, folder, sagas_alone)
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as api:
        started = (await api.post("/sagas/order", json=order("ticket-1"))).json()
        worker = processes.spawn("worker", "-q", "cmd.reserve", "-q", "cmd.pay", cwd=folder, env=OWN)
        await worker.wait_for_line("cmd.pay")
        assert (await ended(api, started))["state"] == "COMPLETED"
        assert "row 1" in worker.log(), "its own log says who paid"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("undo=NothingToUndo", "undo=None and NothingToUndo"), "undo is required"),
        (('"PAYING", Comp', '"PAID", Comp'), "PAID has no transition"),
        (('"evt.paid"', '"evt.reserved"'), "event evt.reserved belongs to more than one step"),
        (('@handles("cmd.pay")', '@handles("cmd.payed")'), "cmd.payed"),
    ],
    ids=["no undo", "dead end", "event twice", "handler of nothing"],
)
async def test_mistakes_are_told_at_the_start(
    processes: Processes, folder: Path, change: tuple[str, str], says: str
) -> None:
    module = folder / "orders.py"
    before = module.read_text()
    module.write_text(before.replace(*change, 1))
    assert module.read_text() != before
    done = await processes.run_async("dev", "--port", str(free_port()), cwd=folder, env=OWN)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
