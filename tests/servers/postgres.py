"""How does a private PostgreSQL run?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from tests.servers.base import Server
from tests.servers.run import Run, command
from tests.servers.sql import answers_sql

OLDEST = 15
_LOGIN = "orchestrix:secret"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "dynamic_shared_memory_type": "mmap",  # in its own folder: a killed server leaves those in /dev/shm behind
}
# A server that tests kill, to count what survives, keeps them as they come. The others' databases live for seconds.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}


def find() -> Path | None:
    """The folder of the newest `postgres` and `initdb` from version 15 on, or None. A `psql` alone is no server."""
    on_path = shutil.which("postgres")
    roots = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    folders = [*roots, *([Path(os.path.realpath(on_path)).parent] if on_path else [])]
    known = [(_version(f), f) for f in folders if (f / "postgres").exists() and (f / "initdb").exists()]
    return max((entry for entry in known if entry[0] >= OLDEST), default=(0, None))[1]


def _version(folder: Path) -> int:
    """The major version, 0 when the program does not tell."""
    try:
        text = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r"\b(\d+)\b", text)
    return int(match[1]) if match else 0


class PostgresServer(Server):
    """PostgreSQL on TCP with a password."""

    kind = "postgres"
    user = "postgres"
    stop_signal = signal.SIGINT  # "fast": do not wait until the clients leave

    def __init__(self, binaries: Path, run: Run) -> None:
        super().__init__(run)
        self._binaries = binaries
        self._data = self.home / "data"

    def url(self, database: str = "postgres") -> str:
        """The address of a database for SQLAlchemy with asyncpg."""
        return f"postgresql+asyncpg://{_LOGIN}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        self.run.copy_of_template(self.kind, self.account, self._data, self._initialise)

    def argv(self) -> list[str]:
        lasting = {} if self.durable else _NOT_DURABLE
        settings = {**_SETTINGS, **lasting, "port": str(self.port), "unix_socket_directories": str(self.home)}
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(self._data), *options]

    def answers(self) -> bool:
        return answers_sql(self.url())

    def _initialise(self, folder: Path) -> None:
        user, _, password = _LOGIN.partition(":")
        secret = self.write("password", password)
        options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        command(
            [str(self._binaries / "initdb"), "-D", str(folder), "-U", user, f"--pwfile={secret}", *options],
            env=self.env(),
            cwd=self.home,
            account=self.account,
        )
