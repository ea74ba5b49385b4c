"""Does the diagram show the saga, all of it and nothing else?"""

from __future__ import annotations

import re

import pytest

from orchestrix import Saga
from orchestrix.saga.definition import CREATED, STEP_FAILED
from orchestrix.saga.diagram import to_mermaid
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import ORDER, step

EDGE = re.compile(r"^    (\S+) --> (\S+)(?:: (.+))?$")


@pytest.mark.parametrize("saga", [APP_PROVISIONING, ORDER, Saga("x", (step(),))], ids=lambda saga: saga.name)
def test_diagram_has_every_edge_and_no_other(saga: Saga) -> None:
    head, *lines = to_mermaid(saga).splitlines()
    assert head == "stateDiagram-v2"
    drawn = [match.groups() for match in map(EDGE.match, lines) if match]
    assert len(drawn) == len(lines)
    labels = {CREATED: "start", STEP_FAILED: "a step failed, or cancel"}
    moves = [(edge.source or "[*]", edge.target, labels.get(edge.cause, edge.cause)) for edge in saga.edges]
    assert drawn == [*moves, ("COMPLETED", "[*]", None), ("FAILED", "[*]", None)]


def test_diagram_of_the_app_saga() -> None:
    assert to_mermaid(APP_PROVISIONING) == (
        "stateDiagram-v2\n"
        "    [*] --> APP_INITIATED: start\n"
        "    APP_INITIATED --> GIT_REPO_CREATED: evt.gitRepoCreated\n"
        "    GIT_REPO_CREATED --> REGISTERING: immediate\n"
        "    REGISTERING --> COMPLETED: evt.appRegistered\n"
        "    APP_INITIATED --> FAILED: a step failed, or cancel\n"
        "    GIT_REPO_CREATED --> FAILED: a step failed, or cancel\n"
        "    REGISTERING --> FAILED: a step failed, or cancel\n"
        "    APP_INITIATED --> COMPENSATING: a step failed, or cancel\n"
        "    GIT_REPO_CREATED --> COMPENSATING: a step failed, or cancel\n"
        "    REGISTERING --> COMPENSATING: a step failed, or cancel\n"
        "    COMPENSATING --> FAILED: undone\n"
        "    COMPENSATING --> COMPENSATION_FAILED: undo failed\n"
        "    COMPENSATION_FAILED --> COMPENSATING: retry or skip\n"
        "    COMPENSATION_FAILED --> FAILED: skip or terminate\n"
        "    FAILED --> APP_INITIATED: retry\n"
        "    COMPLETED --> [*]\n"
        "    FAILED --> [*]\n"
    )
