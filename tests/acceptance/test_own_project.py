"""Does a project with packages of the same names as the repository's run on the wheel?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.acceptance.installed import Installed
from tests.processes import Processes
from tests.servers.run import Run
from tests.support import NO_TLS, eventually, free_port

ENDED: Final = ("COMPLETED", "FAILED", "SUCCEEDED", "TIMED_OUT", "CANCELLED")
PROJECT: Final = {
    "orchestrix.toml": """
sagas = ["sagas.order"]
workers = ["workers.kitchen"]

[log]
level = "info"
""",
    "app/__init__.py": "",
    "app/models.py": """
from pydantic import BaseModel

TABLES = {"window": 7}


class Order(BaseModel):
    dish: str
    wish: str
    table: int | None = None
""",
    "migrations/__init__.py": "raise RuntimeError('the migrations of this project are its own affair')\n",
    "migrations/env.py": "raise RuntimeError('the migrations of this project are its own affair')\n",
    "sagas/__init__.py": "",
    "sagas/order.py": """
from app.models import Order
from orchestrix import COMPLETED, Compensation, NothingToUndo, Saga, Step

RESERVE = Step("reserve", "ORDERED", "cmd.reserve", "evt.reserved", "COOKING", Compensation("cmd.free", "evt.freed"))
COOK = Step("cook", "COOKING", "cmd.cook", "evt.cooked", then=COMPLETED, undo=NothingToUndo("it is the last step"))
ORDER = Saga(name="order", data=Order, steps=(RESERVE, COOK))
""",
    "workers/__init__.py": "",
    "workers/kitchen.py": """
from app.models import TABLES
from orchestrix import Command, Context, JobContext, Permanent, handles, job


@handles("cmd.reserve")
async def reserve(context: Context, command: Command) -> dict[str, int]:
    return {"table": TABLES[command.data["wish"]]}


@handles("cmd.free")
async def free(context: Context, command: Command) -> None: ...


@handles("cmd.cook")
async def cook(context: Context, command: Command) -> None:
    if command.data["dish"] == "stone soup":
        raise Permanent("NoStones", "the kitchen is out of stones")


@job("count", queue="accounts")
async def count(context: JobContext) -> dict[str, int]:
    await context.log("counting")
    return {"tables": len(TABLES)}
""",
    "tests/test_order.py": """
import workers.kitchen
from orchestrix.testing import given
from sagas.order import ORDER


def test_an_order_is_cooked_at_its_table():
    story = given(ORDER, handlers=workers.kitchen, data={"dish": "soup", "wish": "window"})
    story.run()
    story.expect(state="COMPLETED", data={"table": 7})


def test_what_cannot_be_cooked_frees_the_table():
    story = given(ORDER, handlers=workers.kitchen, data={"dish": "stone soup", "wish": "window"})
    story.run()
    story.expect(state="FAILED", undone=["reserve"])
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small service, as a user has it: nothing of it lies in the repository."""
    folder = tmp_path / "restaurant"
    for place, text in PROJECT.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    return folder


@pytest.fixture
def processes(server_run: Run, tmp_path: Path, fresh: Installed) -> Iterator[Processes]:
    """Starts commands of the environment with the wheel."""
    started = Processes(server_run, tmp_path, fresh.orchestrix)
    yield started
    started.close()


@pytest.mark.req("X-4")
async def test_its_saga_its_worker_and_its_job_run(processes: Processes, project: Path) -> None:
    dev = processes.spawn("dev", "--port", str(free_port()), cwd=project)
    await dev.wait_for_line("^Ready in")
    url = json.loads((project / ".orchestrix" / "dev.json").read_text())["apiUrl"]
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as api:
        body = {"key": "order-1", "createdBy": "ada", "data": {"dish": "soup", "wish": "window"}}
        saga = await posted(api, "/sagas/order", body)
        job = await posted(api, "/jobs", {"queue": "accounts", "handler": "count"})
        saga = await ended(api, f"/sagas/order/{saga['id']}")
        assert (saga["state"], saga["data"]["table"]) == ("COMPLETED", 7)
        job = await ended(api, f"/jobs/{job['id']}")
        assert (job["state"], job["result"]) == ("SUCCEEDED", {"tables": 1})


async def test_a_worker_of_its_own_does_the_work(processes: Processes, project: Path) -> None:
    (project / "orchestrix.toml").write_text('sagas = ["sagas.order"]\n')
    await processes.spawn("dev", "--port", str(free_port()), cwd=project).wait_for_line("^Ready in")
    worker = processes.spawn("worker", cwd=project, env={"ORCHESTRIX_WORKERS": "workers.kitchen"})
    await worker.wait_for_line("cmd.cook")
    order = ("sagas", "create", "order", "order-1", "--by", "ada", "--data", '{"dish":"soup","wish":"window"}')
    done = await processes.run_async(*order, "--wait", "-o", "json", cwd=project)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "COMPLETED"


def test_its_tests_pass(fresh: Installed, project: Path) -> None:
    done = fresh.run("-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


async def posted(api: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the API has made of it."""
    answer = await api.post(path, json=body)
    assert answer.is_success, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def ended(api: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """The saga or the job once it has ended."""

    async def look() -> dict[str, Any] | None:
        seen: dict[str, Any] = (await api.get(path)).json()
        return seen if seen["state"] in ENDED else None

    seen: dict[str, Any] | None = await eventually(look, deadline=30, every=0.05, message=f"{path} ends")
    assert seen is not None
    return seen
