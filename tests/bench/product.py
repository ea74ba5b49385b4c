"""How does the product do under each kind of load, and did it do all of its work?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.bench.control import Answer, Orders
from tests.bench.measure import Meter, Spread, median, rss_mb, spread
from tests.bench.servers import Servers
from tests.support import eventually_sync

ROOT: Final = Path(__file__).parents[2]
READY: Final = 60.0
PATIENCE: Final = 60.0
CHANGES: Final = 4
"""Rows of history that each app has when it is complete."""


class WrongResult(Exception):
    """Something was lost or done twice: then no figure means anything."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run. `cpu` is milliseconds of processor time per saga, by process; `latency` is left out at saturation."""

    sagas: int
    seconds: float
    cpu: dict[str, float]
    latency: Spread | None = None

    @property
    def rate(self) -> float:
        """Sagas a second."""
        return self.sagas / self.seconds

    @property
    def cpu_total(self) -> float:
        """Milliseconds of processor time per saga, of all processes together."""
        return sum(self.cpu.values())


def middle(results: Sequence[Result]) -> Result:
    """The median of each figure over several runs of one kind."""
    spreads = [one.latency for one in results if one.latency is not None]
    return Result(
        sagas=results[0].sagas,
        seconds=median(one.seconds for one in results),
        cpu={name: median(one.cpu[name] for one in results) for name in results[0].cpu},
        latency=Spread(*(median(getattr(one, name) for one in spreads) for name in ("p50", "p99", "worst")))
        if spreads
        else None,
    )


class Product:
    """One node, one worker and one HTTP client over one database. `clients` is how many act at once at saturation.
    `more` are variables of the node and the worker.

    Each run raises `WrongResult` if its sagas are not all there, once.
    """

    def __init__(self, servers: Servers, database: str, more: Mapping[str, str] | None = None) -> None:
        self._servers = servers
        self._database = database
        self._runs = 0
        self._inside, self._http = Orders(), Orders()
        env = {
            "ORCHESTRIX_DATABASE_URL": servers.postgres.url(database),
            "ORCHESTRIX_BROKER_URL": servers.rabbit.url(database),
            "ORCHESTRIX_GIT__PROVIDER": "none",
            "ORCHESTRIX_REGISTRATION__PROVIDER": "none",
            **(more or {}),
        }
        self._worker = spawn(servers, "worker", [str(Path(sys.executable).with_name("orchestrix")), "worker"], env)
        self._node = spawn(servers, "node", [sys.executable, "-m", "tests.bench.node"], {**env, **self._inside.env})
        self.url = urlsplit(self._inside.greet(READY)["url"])
        where = {"BENCH_HOST": str(self.url.hostname), "BENCH_HTTP_PORT": str(self.url.port)}
        self._client = spawn(servers, "client", [sys.executable, "-m", "tests.bench.load"], {**where, **self._http.env})
        self._http.greet(READY)
        self._base = self._highest_id()

    def close(self) -> None:
        """Ends the processes."""
        for orders in (self._inside, self._http):
            orders.close()
        for process in (self._client, self._node, self._worker):
            self._servers.run.kill(process)

    def inside(self, sagas: int, clients: int) -> Result:
        """As many as it can do, started by the service in its own process."""
        return self._run(sagas, lambda name: self._inside.ask("closed", prefix=name, sagas=sagas, clients=clients))

    def inside_at(self, sagas: int, rate: float) -> Result:
        """`rate` sagas a second, started by the service in its own process."""
        return self._run(sagas, lambda name: self._inside.ask("open", prefix=name, sagas=sagas, rate=rate))

    def http(self, sagas: int, clients: int) -> Result:
        """As many as it can do, posted over HTTP by `clients` connections."""
        return self._run(sagas, lambda name: self._recorded("closed", name, sagas, clients=clients))

    def http_at(self, sagas: int, rate: float) -> Result:
        """`rate` sagas a second, posted over HTTP."""
        return self._run(sagas, lambda name: self._recorded("open", name, sagas, rate=rate))

    def get(self, paths: Sequence[str]) -> Answer:
        """Milliseconds of each GET, one after the other."""
        return self._http.ask("get", paths=list(paths))

    def memory(self) -> dict[str, float]:
        """MiB that the product's processes have in use."""
        return {"node": rss_mb(self._node.pid), "worker": rss_mb(self._worker.pid)}

    def _recorded(self, do: str, prefix: str, sagas: int, **how: float) -> Answer:
        self._inside.ask("record")
        due: dict[str, float] = self._http.ask(do, prefix=prefix, sagas=sagas, **how).get("due", {})
        ends: dict[str, float] = self._inside.ask("ends", sagas=sagas, timeout=PATIENCE)["ends"]
        return {"ms": [1000 * (ends[name] - at) for name, at in due.items()]}

    def _run(self, sagas: int, work: Callable[[str], Answer]) -> Result:
        self._runs += 1
        before = self._highest_id()
        meter = Meter(self.pids)
        answer = work(f"run-{self._base}-{self._runs}")
        seconds, used = meter.seconds, {name: ms / sagas for name, ms in meter.read().items()}
        self._check(before, sagas)
        return Result(sagas, seconds, used, spread(answer["ms"]) if answer.get("ms") else None)

    @property
    def pids(self) -> dict[str, int]:
        """The processes whose time is counted."""
        ours = {"node": self._node.pid, "worker": self._worker.pid, "submitter": self._client.pid}
        return ours | self._servers.pids

    def _highest_id(self) -> int:
        (row,) = self._servers.rows(self._database, "SELECT coalesce(max(id), 0) AS id FROM apps")
        return int(row["id"])

    def _check(self, before: int, sagas: int) -> None:
        expected = {"completed": sagas, "apps": sagas, "history": CHANGES * sagas, "outbox": 0}
        try:
            eventually_sync(lambda: self._counted(before) == expected, deadline=10, every=0.1)
        except AssertionError as late:
            raise WrongResult(f"{self._counted(before)} instead of {expected}") from late

    def _counted(self, before: int) -> dict[str, int]:
        (row,) = self._servers.rows(
            self._database,
            f"SELECT (SELECT count(*) FROM apps WHERE id > {before}) AS apps,"
            f" (SELECT count(*) FROM apps WHERE id > {before} AND state = 'COMPLETED') AS completed,"
            f" (SELECT count(*) FROM app_state_history WHERE app_id > {before}) AS history,"
            " (SELECT count(*) FROM outbox) AS outbox",
        )
        return dict(row)


@contextmanager
def product(servers: Servers, database: str, more: Mapping[str, str] | None = None) -> Iterator[Product]:
    """A running product, warmed up."""
    one = Product(servers, database, more)
    try:
        one.inside(500, 50)
        yield one
    finally:
        one.close()


def spawn(servers: Servers, name: str, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process that ends with the bench; its output goes to a file beside the servers' own."""
    folder = servers.run.root
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ORCHESTRIX_", "PYTHON"))}
    more = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env}
    return servers.run.spawn(argv, env=inherited | more, cwd=folder, log=folder / f"{name}.log")
