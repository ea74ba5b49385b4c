"""What does a system use, and does it give back what its dead processes had (I11)?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tests.fault.crashing import Rig
from tests.processes import Process
from tests.servers.rabbit import RabbitServer

SLACK: Final = 1.1


@dataclass(frozen=True)
class Usage:
    """Memory is in kB. Sessions are those of the database; -1 stands for what this server does not tell."""

    memory: int
    files: int
    threads: int
    sessions: int
    channels: int

    def above(self, baseline: Usage) -> str | None:
        """None if nothing is more than a tenth above the baseline; else a sentence."""
        for one in fields(self):
            now, before = getattr(self, one.name), getattr(baseline, one.name)
            if now > before * SLACK:
                return f"I11: {now} {one.name}, {before} before"
        return None


async def used(rig: Rig, processes: Iterable[Process], broker: object) -> Usage:
    """What these processes, their database and their virtual host use now. The database is PostgreSQL."""
    pids = [process.pid for process in processes]
    ((sessions,),) = await rig.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return Usage(
        memory=sum(_status(pid, "VmRSS") for pid in pids),
        files=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        threads=sum(_status(pid, "Threads") for pid in pids),
        sessions=sessions,
        channels=_channels(broker, unquote(urlsplit(rig.broker_url).path[1:])),
    )


def _status(pid: int, field: str) -> int:
    """A number of /proc/PID/status (proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _channels(broker: object, vhost: str) -> int:
    if not isinstance(broker, RabbitServer):
        return -1
    return int(broker.eval(f'length([1 || [{{vhost, <<"{vhost}">>}}] <- rabbit_channel:info_all([vhost])])'))
