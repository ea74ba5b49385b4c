"""How does a private MariaDB run?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.servers.base import Server
from tests.servers.run import Run, command
from tests.servers.sql import answers_sql

_USER, _PASSWORD = "orchestrix", "secret"
_OPTIONS = [
    "--bind-address=127.0.0.1",
    "--skip-networking=0",
    "--skip-name-resolve",
    "--character-set-server=utf8mb4",
    "--max-connections=200",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--performance-schema=off",
]
# A server that tests kill, to count what survives, does without them.
_NOT_DURABLE = [
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--sync-frm=0",
    "--debug-no-sync",
]
_SYSTEM_PATH = os.pathsep.join(["/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/bin"])


class Binaries(NamedTuple):
    """The two programs that a private server needs."""

    server: Path
    install: Path

    def __str__(self) -> str:
        return str(self.server.parent)


def find() -> Binaries | None:
    """`mariadbd` and `mariadb-install-db`, or None."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), _SYSTEM_PATH])
    server, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    return Binaries(Path(server), Path(install)) if server and install else None


class MariaServer(Server):
    """MariaDB on TCP with a user and a password, and with a socket of its own."""

    kind = "mariadb"
    user = "mysql"

    def __init__(self, binaries: Binaries, run: Run) -> None:
        super().__init__(run)
        self._binaries = binaries
        self._data = self.home / "data"

    def url(self, database: str = "mysql") -> str:
        """The address of a database for SQLAlchemy with asyncmy."""
        return f"mysql+asyncmy://{_USER}:{_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        self.run.copy_of_template(self.kind, self.account, self._data, self._initialise)
        # One statement a line: the server reads the file so.
        self.write(
            "init.sql",
            f"CREATE USER IF NOT EXISTS '{_USER}'@'%' IDENTIFIED BY '{_PASSWORD}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{_USER}'@'%' WITH GRANT OPTION;\n",
        )

    def argv(self) -> list[str]:
        files = {"datadir": "data", "socket": "socket", "pid-file": "pid", "init-file": "init.sql", "tmpdir": ""}
        paths = [f"--{option}={self.home / name}" for option, name in files.items()]
        options = _OPTIONS if self.durable else [*_OPTIONS, *_NOT_DURABLE]
        return [str(self._binaries.server), "--no-defaults", *options, f"--port={self.port}", *paths]

    def answers(self) -> bool:
        return answers_sql(self.url())

    def _initialise(self, folder: Path) -> None:
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        command(
            [str(self._binaries.install), *options, f"--datadir={folder}", f"--tmpdir={self.home}"],
            env=self.env(),
            cwd=self.home,
            account=self.account,
        )
