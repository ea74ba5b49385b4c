"""A saga with steps for workers of the test, and for the executors of the app that it is about."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from orchestrix import COMPLETED, Compensation, Job, NothingToUndo, Saga, Step

ONBOARDING: Final = Saga(
    "onboarding",
    (
        Step(
            "fill",
            "FILLING",
            job=Job("sagas.fill", group="{key}", routing="CONSISTENT_HASH", timeout=timedelta(seconds=60)),
            event="evt.sagaFilled",
            then="CHECKING",
            undo=Compensation(event="evt.sagaEmptied", job=Job("sagas.empty", group="{key}")),
        ),
        Step(
            "check",
            "CHECKING",
            job=Job("sagas.check", group="{key}", routing="SHARDING_BROADCAST"),
            event="evt.sagaChecked",
            then=COMPLETED,
            undo=NothingToUndo("a check has no effect"),
        ),
    ),
)
