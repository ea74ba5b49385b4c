"""How do DBOS and Celery do at the same two steps, on the same servers?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.bench.control import Orders
from tests.bench.measure import Meter, spread
from tests.bench.product import ROOT, Result, spawn
from tests.bench.servers import Servers

ENVIRONMENT: Final = ROOT / ".bench-venv"
_WANTED: Final = Path(__file__).with_name("peers") / "requirements.txt"
_READY: Final = 90.0


class Rival:
    """One peer with its processes. `at` runs are open loop: the rate is kept whether or not the peer keeps up."""

    def __init__(self, servers: Servers, orders: Orders, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self._orders = orders
        self._pids = {name: process.pid for name, process in processes.items()} | servers.pids

    def closed(self, sagas: int) -> Result:
        """As many as it can do."""
        return self._run(sagas, "closed")

    def at(self, sagas: int, rate: float) -> Result:
        """`rate` sagas a second."""
        return self._run(sagas, "open", rate=rate)

    def _run(self, sagas: int, do: str, **how: float) -> Result:
        meter = Meter(self._pids)
        answer = self._orders.ask(do, sagas=sagas, **how)
        seconds, used = meter.seconds, meter.read()
        cpu = {name: ms / sagas for name, ms in used.items()}
        return Result(sagas, seconds, cpu, spread(answer["ms"]) if "ms" in answer else None)


@contextmanager
def dbos(servers: Servers) -> Iterator[Rival]:
    """DBOS: synchronous workflow with two steps, started in its own process."""
    with _orders(servers, "dbos") as (orders, env):
        app = spawn(servers, "dbos", [_python(), "-m", "tests.bench.peers.dbos_app"], env)
        with _ended(servers, app):
            orders.greet(_READY)
            yield Rival(servers, orders, {"node": app})


@contextmanager
def celery(servers: Servers) -> Iterator[Rival]:
    """Celery: chain of two tasks over RabbitMQ, results in PostgreSQL, late acknowledgement, two worker processes."""
    options = ["--pool", "prefork", "--concurrency", "2", "--loglevel", "WARNING"]
    with _orders(servers, "celery") as (orders, env):
        argv = [_python(), "-m", "celery", "-A", "tests.bench.peers.celery_app", "worker", *options]
        worker = spawn(servers, "celery-worker", argv, env)
        client = spawn(servers, "celery-client", [_python(), "-m", "tests.bench.peers.celery_client"], env)
        with _ended(servers, worker, client):
            orders.greet(_READY)
            yield Rival(servers, orders, {"worker": worker, "submitter": client})


def install() -> None:
    """Makes the peers' own environment, unless it fits already."""
    stamp = ENVIRONMENT / "installed.txt"
    wanted = _WANTED.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("installing the peers into .bench-venv ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    pip = [_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(_WANTED)]
    subprocess.run(pip, check=True)
    stamp.write_text(wanted)


def _python() -> str:
    return str(ENVIRONMENT / "bin" / "python")


@contextmanager
def _orders(servers: Servers, name: str) -> Iterator[tuple[Orders, dict[str, str]]]:
    orders = Orders()
    env = {
        "BENCH_BROKER": servers.rabbit.url("celery"),
        "BENCH_DATABASE": servers.plain_url(name).replace("postgresql:", "postgresql+psycopg:"),
        **orders.env,
    }
    try:
        yield orders, env
    finally:
        orders.close()


@contextmanager
def _ended(servers: Servers, *processes: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            servers.run.kill(process)
