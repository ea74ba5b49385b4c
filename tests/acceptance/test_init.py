"""Does the service that `orchestrix init` writes run with `orchestrix dev`, as its README says?"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tests.acceptance.readme import asked
from tests.processes import Processes
from tests.support import free_port

PROMISED_S = 20.0


async def test_the_first_order_is_completed_within_twenty_seconds(programs: Processes, tmp_path: Path) -> None:
    written = await programs.run_async("init", "first", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    folder = tmp_path / "first"
    readme = (folder / "README.md").read_text().replace("\\\n", " ")
    (curl,) = re.findall(r"^    (curl .*)$", readme, re.MULTILINE)
    (watch,) = re.findall(r"^    orchestrix (sagas watch .*?) +#", readme, re.MULTILINE)
    began = time.monotonic()
    dev = programs.spawn("dev", "--port", str(free_port()), cwd=folder)
    await dev.wait_for_line("^Ready in")
    started = await asked(curl, json.loads((folder / ".orchestrix" / "dev.json").read_text())["apiUrl"])
    assert started.status_code == 200, started.text
    assert (started.json()["orderNo"], started.json()["item"]) == ("A-1", "lamp")
    seen = await programs.run_async(*watch.split(), cwd=folder)
    assert time.monotonic() - began < PROMISED_S
    assert seen.returncode == 0, seen.stderr
    assert "COMPLETED" in seen.stdout
