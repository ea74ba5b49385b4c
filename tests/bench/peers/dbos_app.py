"""How many two-step workflows does DBOS complete, and how long does each take?"""

from __future__ import annotations

import os
import time

import psycopg
from dbos import DBOS, SetWorkflowID

from tests.bench.control import Answer, Child

_URL = os.environ["BENCH_DATABASE"].replace("+psycopg", "")
DBOS(config={"name": "bench", "system_database_url": _URL, "log_level": "WARNING", "run_admin_server": False})


def _create_repo(name: str) -> str:
    return name


def _register(name: str) -> str:
    return name


create_repo = DBOS.step()(_create_repo)
register = DBOS.step()(_register)


def _provision(name: str) -> str:
    return str(register(create_repo(name)))


provision = DBOS.workflow()(_provision)


class App:
    """Starts workflows in its own process."""

    def __init__(self) -> None:
        self._database = psycopg.connect(_URL, autocommit=True)
        self._runs = 0

    def closed(self, sagas: int) -> Answer:
        """As fast as one thread can start them."""
        for handle in [DBOS.start_workflow(provision, f"app-{number}") for number in range(sagas)]:
            handle.get_result()
        return {}

    def open(self, sagas: int, rate: float) -> Answer:
        """`rate` a second; the milliseconds of each from when it was due to the time of its stored result."""
        self._runs += 1
        began, due, handles = time.time(), {}, []
        for number in range(sagas):
            at = began + number / rate
            time.sleep(max(0.0, at - time.time()))
            due[f"run-{self._runs}-{number}"] = at
            with SetWorkflowID(f"run-{self._runs}-{number}"):
                handles.append(DBOS.start_workflow(provision, f"app-{number}"))
        for handle in handles:
            handle.get_result()
        query = "SELECT workflow_uuid, updated_at FROM dbos.workflow_status WHERE workflow_uuid = ANY(%s)"
        ended = dict(self._database.execute(query, [list(due)]).fetchall())
        return {"ms": [ended[id] - 1000 * at for id, at in due.items()]}


def main() -> None:
    """Obeys until the bench hangs up."""
    DBOS.launch()
    DBOS.start_workflow(provision, "warm").get_result()
    app, child = App(), Child()
    for order in child:
        child.answer(app.open(**order) if order.pop("do") == "open" else app.closed(**order))
    os._exit(0)


if __name__ == "__main__":
    main()
