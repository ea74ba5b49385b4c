"""Git process: runs git so that neither the machine's configuration nor an app's name influences it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from orchestrix import Transient, Unavailable

INSTALL: Final = "install git (`apt-get install git`), or set ORCHESTRIX_GIT__PROVIDER=simulated to try it without git"
LIMIT_S: Final = 20.0
"""Seconds that git has to say its version."""
AUTHOR: Final = "Orchestrix <orchestrix@localhost>"
BRANCH: Final = "main"
IMPORT: Final = ("-c", "fastimport.unpackLimit=1", "-c", "core.fsync=none")
"""One pack instead of loose objects: fewer files, and one process less. The caller syncs them to disk."""


def git_version() -> str | None:
    """What `git --version` says; None if there is no git on the PATH, or it does not run."""
    program = shutil.which("git")
    if program is None:
        return None
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


async def first_commit(folder: Path, readme: str) -> None:
    """Makes the new `folder` a bare repository whose branch `main` has one commit with README.md.

    Raises `Transient` if git fails, `Unavailable` if git has gone from this machine. When cancelled, it leaves no
    process behind.
    """
    await asyncio.to_thread(folder.mkdir, mode=0o700, exist_ok=True)  # git would let everybody read it
    init = ("init", "--quiet", "--bare", "--template=", "--shared=0600", f"--initial-branch={BRANCH}")
    await _git(*init, "--", str(folder))
    await _git(*IMPORT, f"--git-dir={folder}", "fast-import", "--quiet", stdin=_stream(readme))


def _stream(readme: str) -> bytes:
    """The commit as a `git fast-import` stream, where every text is preceded by its length."""
    when = f"{int(time.time())} +0000"
    return b"".join(
        (
            f"commit refs/heads/{BRANCH}\nauthor {AUTHOR} {when}\ncommitter {AUTHOR} {when}\n".encode(),
            _data("First commit\n"),
            b"M 100644 inline README.md\n",
            _data(readme),
            b"\ndone\n",
        )
    )


def _data(text: str) -> bytes:
    content = text.encode()
    return b"data %d\n%b\n" % (len(content), content)


async def _git(*arguments: str, stdin: bytes = b"") -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
    except FileNotFoundError as error:
        raise Unavailable(f"git is no longer on this machine: {INSTALL}") from error
    try:
        _, stderr = await process.communicate(stdin)
    except BaseException:
        await _kill(process)
        raise
    if process.returncode != 0:
        said = stderr.decode(errors="replace").strip()[-500:]
        raise Transient("GitFailed", f"git exited with code {process.returncode}: {said or 'no output'}")


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def _environment() -> dict[str, str]:
    """No configuration of the machine or of its users, no prompts, and English messages."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
