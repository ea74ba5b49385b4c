"""Edits of a saga between starts of `dev`: taken where nothing runs, refused with the way out where something does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.acceptance.system import Client
from tests.processes import Process, Processes
from tests.support import eventually, free_port

OWN: Final = {"ORCHESTRIX_SAGAS": "parcel", "ORCHESTRIX_WORKERS": "parcel", "ORCHESTRIX_ORCHESTRATOR__CLAIM": "2"}
MODULE: Final = """
import asyncio
from pathlib import Path
from orchestrix import COMPLETED, NothingToUndo, Saga, Step
from orchestrix import handles

PARCEL = Saga(
    name="parcel",
    version=VERSION,
    steps=(
        Step("pack", "PACKING", "cmd.pack", "evt.packed", "SENDING_EDIT", NothingToUndo("paper")),
        Step("send", "SENDING_EDIT", "cmd.send", "evt.sentEDIT", COMPLETED, NothingToUndo("it is gone")),
    ),
)

@handles("cmd.pack")
@handles("cmd.send")
async def work(context, command):
    while Path("closed").exists():
        await asyncio.sleep(0.02)
"""


def edit(folder: Path, number: int, version: int = 1) -> None:
    """Another state and another event in the module of the folder."""
    text = MODULE.replace("EDIT", f"{number}").replace("VERSION", f"{version}")
    path = folder / "parcel.py"
    path.write_text(text)
    # Python takes a module's bytecode for its own if size and second are the same.
    os.utime(path, (number + 10 * version, number + 10 * version))


def dev(processes: Processes, folder: Path) -> tuple[Process, Client]:
    """`dev` in the folder, ready, and a client of it."""
    process = processes.spawn("dev", "--port", str(free_port()), cwd=folder, env=OWN)
    process.wait_for_line_sync("^Ready in")
    return process, Client(json.loads((folder / ".orchestrix" / "dev.json").read_text())["apiUrl"])


async def stopped(process: Process) -> None:
    """Waits for its good end after SIGTERM."""
    process.terminate()
    assert await process.exited(deadline=60) == 0, process.log_tail()


async def started(client: Client, key: str) -> int:
    """The id of a new instance."""
    answer = await client.http.post("/sagas/parcel", json={"key": key, "createdBy": "ada"})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


async def path(client: Client, id: int) -> list[str]:
    """The states that the instance has gone through, once it is completed."""

    async def completed() -> bool:
        return str((await client.http.get(f"/sagas/parcel/{id}")).json()["state"]) == "COMPLETED"

    await eventually(completed, deadline=30, every=0.05, message=f"parcel {id} completes")
    items = (await client.http.get(f"/sagas/parcel/{id}/history")).json()["items"]
    return [row["toState"] for row in items]


async def test_a_saga_is_edited_again_and_again_without_a_restart_refused(
    processes: Processes, tmp_path: Path, scale: Callable[[int, int], int]
) -> None:
    for number in range(scale(3, 20) + 1):
        edit(tmp_path, number)
        process, client = dev(processes, tmp_path)
        async with client:
            assert await path(client, await started(client, f"n-{number}")) == [
                "PACKING",
                f"SENDING_{number}",
                "COMPLETED",
            ]
        replaced = "saga parcel version 1 was replaced (it has no live instances)"
        assert (replaced in process.log()) == (number > 0), process.log_tail()
        await stopped(process)


async def test_an_edit_under_a_live_instance_asks_for_another_version_and_loses_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "closed").touch()
    edit(tmp_path, 1)
    process, client = dev(processes, tmp_path)
    async with client:
        id = await started(client, "live")
    process.kill9()
    edit(tmp_path, 2)
    refused = await processes.run_async("dev", "--port", str(free_port()), cwd=tmp_path, env=OWN, timeout=60)
    assert refused.returncode == 2, refused.stderr
    assert "saga 'parcel' version 1 has 1 live instance and differs in this code" in refused.stderr
    assert "raise its version, Saga(…, version=2)" in refused.stderr
    assert "Traceback" not in refused.stderr
    edit(tmp_path, 2, version=2)
    (tmp_path / "closed").unlink()
    process, client = dev(processes, tmp_path)
    async with client:
        assert await path(client, id) == ["PACKING", "SENDING_1", "COMPLETED"]
        assert await path(client, await started(client, "next")) == ["PACKING", "SENDING_2", "COMPLETED"]
    await stopped(process)
