"""Is it said in the settings alone after how many seconds a worker is lost?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from orchestrix.api.dependencies import ApiContext
from orchestrix.domain.job_diagnosis import DiagnosisContext
from orchestrix.engine.explain.stuck import StuckSagas
from orchestrix.engine.explain.why import SagaExplainer
from orchestrix.persistence.jobs import job_queues, jobs


@pytest.mark.parametrize(
    ("asks", "names"),
    [
        (ApiContext, ["silent"]),
        (DiagnosisContext, ["limit"]),
        (SagaExplainer, ["limits"]),
        (StuckSagas, ["silent"]),
        (jobs.timed_out, ["heard"]),
        (jobs.silent, ["seconds", "heard"]),
        (job_queues.lost_dispatches, ["seconds", "heard"]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_nobody_has_a_time_of_his_own(asks: Callable[..., Any], names: list[str]) -> None:
    parameters = inspect.signature(asks).parameters
    assert {name: parameters[name].default for name in names} == dict.fromkeys(names, inspect.Parameter.empty)
