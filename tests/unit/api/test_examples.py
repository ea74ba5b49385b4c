"""Is there an example of every answer, and does it fit? Do the samples that the shell is tested with?"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrix.api import answers
from orchestrix.api.answers import Answer
from orchestrix.api.app import own_operations
from orchestrix.api.cluster.models import ClusterBody
from orchestrix.api.dead_letters.models import DeadLetterSummary
from orchestrix.api.jobs.models import JobItem
from orchestrix.api.sagas.routes import operations_of
from orchestrix.api.schedules.models import ComingBody, ScheduleBody
from tests.integration.cli import samples

OPERATIONS = [*own_operations(), *operations_of(())]
ANSWERS: set[Any] = {
    model for one in OPERATIONS for model in (one.answer, one.or_answer, *one.events.values()) if model
}


@pytest.mark.parametrize("model", sorted(ANSWERS, key=str))
def test_every_answer_has_an_example_that_fits(model: type[Answer]) -> None:
    example = model.example()
    assert example is not None
    assert model.model_json_schema(mode="serialization")["examples"] == [example]
    assert model.model_validate(example).model_dump(mode="json") == example


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (JobItem, {name: value for name, value in samples.JOB.items() if name != "payload"}),
        (ScheduleBody, samples.SCHEDULE),
        (ComingBody, samples.COMING),
        (ClusterBody, samples.CLUSTER),
        (DeadLetterSummary, samples.DEAD_LETTER),
    ],
)
def test_the_samples_are_answers(model: type[Answer], sample: dict[str, Any]) -> None:
    assert model.model_validate(sample).model_dump(mode="json") == sample


def test_every_operation_is_described() -> None:
    for one in OPERATIONS:
        assert one.summary, one.name
        assert one.about.endswith("."), one.name
    assert answers.JSON == "application/json"
