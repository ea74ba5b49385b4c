"""Processor time of a command: what it costs where the library is installed, whatever else runs on the machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence


def least_cpu_seconds(command: Sequence[str], *, runs: int) -> float:
    """The least of `runs`, the start of the interpreter included, in seconds.

    A run before them compiles the modules, as the installation does: `PYTHONDONTWRITEBYTECODE`, common in containers,
    would have each process compile them anew.
    """
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return min([cpu_seconds(command, environment) for _ in range(runs + 1)][1:])


def cpu_seconds(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime
