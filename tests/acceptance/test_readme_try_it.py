"""Do the lines that the README offers to a newcomer do what they say?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.acceptance.readme import asked, page
from tests.acceptance.system import Client
from tests.processes import ORCHESTRIX, Processes
from tests.support import free_port


def typed(line: str, folder: Path) -> str:
    """What a newcomer sees who types `line` there."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRIX_")}
    env.pop("COLUMNS", None)
    env["PATH"] = f"{ORCHESTRIX.parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


async def test_try_it(programs: Processes, tmp_path: Path) -> None:
    port = free_port()
    programs.spawn("dev", "--port", str(port), cwd=tmp_path).wait_for_line_sync("^Ready in")
    path, curl, clone, create, history, worker = page("git clone")
    assert path.startswith("export PATH=")
    created = await asked(curl, f"http://127.0.0.1:{port}")
    assert (created.status_code, created.json()["id"]) == (200, 1)
    async with Client(f"http://127.0.0.1:{port}") as client:
        await client.completed(1)
    typed(clone, tmp_path)
    assert (tmp_path / ".orchestrix" / "billing" / ".git").is_dir()
    assert "COMPLETED" in typed(create, tmp_path)
    assert "GIT_REPO_CREATED" in typed(history, tmp_path)
    joined = programs.spawn(*worker.split()[1:], cwd=tmp_path)
    await joined.wait_for_line("cmd.registerApp")
