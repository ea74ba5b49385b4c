"""How many two-step chains does Celery complete, and how long does each take?"""

from __future__ import annotations

import os
import time
from datetime import UTC

import psycopg
from celery import chain

from tests.bench.control import Answer, Child
from tests.bench.peers.celery_app import create_repo, register

_EVERY = 0.05


def _start(name: str) -> str:
    return str(chain(create_repo.s(name), register.s()).apply_async().id)


class Client:
    """Starts chains and waits until the results of all are in the database."""

    def __init__(self) -> None:
        self._database = psycopg.connect(os.environ["BENCH_DATABASE"].replace("+psycopg", ""), autocommit=True)

    def closed(self, sagas: int) -> Answer:
        """As fast as one client can start them."""
        self._wait([_start(f"app-{number}") for number in range(sagas)])
        return {}

    def open(self, sagas: int, rate: float) -> Answer:
        """`rate` a second; the milliseconds of each from when it was due to the time of its stored result."""
        began, due = time.time(), {}
        for number in range(sagas):
            at = began + number / rate
            time.sleep(max(0.0, at - time.time()))
            due[_start(f"app-{number}")] = at
        self._wait(list(due))
        query = "SELECT task_id, date_done FROM celery_taskmeta WHERE task_id = ANY(%s)"
        ended = {id: done.replace(tzinfo=UTC).timestamp() for id, done in self._database.execute(query, [list(due)])}
        return {"ms": [1000 * (ended[id] - at) for id, at in due.items()]}

    def _wait(self, ids: list[str]) -> None:
        query = "SELECT count(*) FROM celery_taskmeta WHERE status = 'SUCCESS' AND task_id = ANY(%s)"
        for at in range(0, len(ids), 500):  # in the order of their start, so that most looks are small
            some = ids[at : at + 500]
            while self._database.execute(query, [some]).fetchone()[0] < len(some):
                time.sleep(_EVERY)


def main() -> None:
    """Obeys until the bench hangs up."""
    register.apply_async(["warm"]).get(timeout=60)  # the result backend makes its tables with the first result
    client, child = Client(), Child()
    for order in child:
        child.answer(client.open(**order) if order.pop("do") == "open" else client.closed(**order))


if __name__ == "__main__":
    main()
