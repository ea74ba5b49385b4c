"""Are the servers and tools that the tests need at hand, and if not, can we install them?"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.servers import lookup
from tests.servers.lookup import KINDS, Kind, Source
from tests.servers.tools import TOOLS, Tool

SCRIPT = Path(__file__).with_name("install_packages.sh")


class CannotInstall(Exception):
    """This machine gives us no way to install packages, or the installation failed. The message says what to do."""


def ensure(say: Callable[[str], None] = print) -> None:
    """Looks for each server and says where it is; installs what is missing. Raises CannotInstall or Missing."""
    missing = [kind for kind in KINDS if not _report(kind, say)]
    tools = [tool for tool in TOOLS if not _report_tool(tool, say)]
    if not missing and not tools:
        return
    install([*(kind.package for kind in missing), *(tool.package for tool in tools)], say)
    lookup.find.cache_clear()
    for tool in tools:
        if not _report_tool(tool, say):
            raise lookup.Missing(f"{tool.program} is missing, though the package {tool.package} was installed")
    for kind in missing:
        if not _report(kind, say):
            raise lookup.Missing(f"{lookup.missing(kind)}; the package was installed but its programs were not found")


def install(packages: Sequence[str], say: Callable[[str], None] = print) -> None:
    """Installs Debian packages without starting their daemons, and says so. Raises CannotInstall."""
    prefix = root_prefix()
    line = f"apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise CannotInstall(f"{_nowhere(packages)} This machine has no apt-get: install them by hand.")
    if prefix is None:
        raise CannotInstall(f"{_nowhere(packages)} Installing needs root; type: sudo {line}")
    say(f"Installing {', '.join(packages)} without starting their daemons (this takes a minute or two) ...")
    result = subprocess.run(
        [*prefix, "sh", str(SCRIPT), *packages],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode != 0:
        raise CannotInstall(f"`{line}` failed twice:\n{result.stdout[-3000:]}")


def root_prefix() -> list[str] | None:
    """What to put before a command that needs root; None when we cannot be root without being asked for a password."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
        return [sudo, "-n"]
    return None


def _report(kind: Kind, say: Callable[[str], None]) -> bool:
    source = lookup.find(kind)
    where = {
        Source.GIVEN: f"at the address in {kind.variable}",
        Source.BINARIES: f"binaries in {kind.binaries()}",
        Source.DOCKER: "in Docker",
        None: "not found",
    }[source]
    say(f"{kind.name}: {where}")
    return source is not None


def _report_tool(tool: Tool, say: Callable[[str], None]) -> bool:
    found = tool.find()
    say(f"{tool.program}: {found or 'not found'}")
    return found is not None


def _nowhere(packages: Sequence[str]) -> str:
    return f"The tests need {', '.join(packages)}: no address, no binaries and no Docker engine."
